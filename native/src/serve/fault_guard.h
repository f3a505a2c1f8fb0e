// A client can open its lane's objects (memory, semaphores) and shrink them under kalosd, whose next access is then a
// SIGBUS. The guard turns that into zeros in that object alone: the handler puts fresh anonymous pages over the whole
// mapping, the access is repeated and reads nothing, and the hostile client hears no more.
#pragma once

#include <cstddef>

namespace kalos {

void install_fault_guard();

// Between these two the range is a lane's. At most 65,536 ranges are guarded at a time; false: no room.
bool guard_range(void* base, size_t bytes);
void unguard_range(void* base);

}  // namespace kalos
