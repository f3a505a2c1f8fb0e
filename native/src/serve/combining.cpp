#include "serve/combining.h"

#include <new>

#include "engine/reply.h"

namespace kalos {

Error no_memory() {
  return {
      KALOS_STATUS_OVERLOADED,
      "kalosd got no memory for this request; nothing was done. Ask for less at once, or give it more (ulimit -v, the "
      "container's limit)"};
}

Combiner::Combiner(Database& database, Counters& counters)
    : database_(database), counters_(counters), helper_([this] { help(); }) {}

Combiner::~Combiner() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_one();
  helper_.join();
}

void Combiner::submit(std::unique_ptr<PendingRead> read) {
  Batch batch;
  {
    std::lock_guard lock(mutex_);
    pending_.push_back(std::move(read));
    if (busy_) return;
    busy_ = true;
    batch.swap(pending_);
  }
  serve(std::move(batch));
  {
    std::lock_guard lock(mutex_);
    if (pending_.empty()) {
      busy_ = false;
      return;
    }
    handed_over_ = true;
  }
  wake_.notify_one();
}

void Combiner::serve(Batch batch) {
  std::vector<ReadJob*> jobs;
  for (auto& read : batch) {
    for (auto& job : read->jobs) jobs.push_back(job.get());
  }
  counters_.count(counters_.passes);
  if (batch.size() > 1) counters_.count(counters_.combined, batch.size());
  try {
    database_.serve_reads(jobs);
  } catch (const std::bad_alloc&) {
    for (ReadJob* job : jobs) job->reply = error_reply(no_memory());
  }
  for (auto& read : batch) read->done(*read);
}

void Combiner::help() {
  std::unique_lock lock(mutex_);
  while (true) {
    wake_.wait(lock, [this] { return handed_over_ || stopping_; });
    if (!handed_over_) return;
    while (!pending_.empty()) {
      Batch batch;
      batch.swap(pending_);
      lock.unlock();
      serve(std::move(batch));
      lock.lock();
    }
    handed_over_ = false;
    busy_ = false;
  }
}

}  // namespace kalos
