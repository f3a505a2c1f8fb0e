// Reads without a vector: get, count, scan, namespaces; and what a delete selects (Collection::select).
#pragma once

#include "engine/collection.h"
#include "engine/pass.h"

namespace kalos {

Result<Bytes> get(const Collection& collection, const Snapshot& snapshot, const GetRequest& request);
Result<Bytes> count(const Collection& collection, const Snapshot& snapshot, const CountRequest& request,
                    Deadline deadline);
Result<Bytes> scan(const Collection& collection, const Snapshot& snapshot, const ScanRequest& request,
                   Deadline deadline);
Result<Bytes> list_namespaces(const Collection& collection, const Snapshot& snapshot, const NamespacesRequest& request);

}  // namespace kalos
