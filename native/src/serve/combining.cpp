#include "serve/combining.h"

#include <exception>
#include <string>

#include "engine/reply.h"
#include "store/exception_reply.h"

namespace kalos {

Combiner::Combiner(Database& database, Counters& counters)
    : database_(database), counters_(counters), helper_([this] { help(); }) {}

Combiner::~Combiner() {
  {
    std::unique_lock lock(mutex_);
    idle_.wait(lock, [this] { return !busy_; });
    stopping_ = true;
    wake_.notify_one();
  }
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
  // Told under the lock: this may be the last word before the end.
  std::lock_guard lock(mutex_);
  if (pending_.empty()) {
    busy_ = false;
    idle_.notify_one();
  } else {
    handed_over_ = true;
    wake_.notify_one();
  }
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
    idle_.notify_one();
  }
}

void Combiner::serve(Batch batch) noexcept {
  if (batch.size() > 1) counters_.count(counters_.combined, batch.size());
  if (!pass(batch) && batch.size() > 1) {
    for (auto& read : batch) pass({&read, 1});
  }
  for (auto& read : batch) read->done(reply_of(*read));
}

// False where it ended in an exception: then its reads hold no answer, or that of the exception.
bool Combiner::pass(std::span<const std::unique_ptr<PendingRead>> reads) noexcept {
  counters_.count(counters_.passes);
  try {
    std::vector<ReadJob*> jobs;
    for (auto& read : reads) {
      for (auto& job : read->jobs) {
        job->reply = Reply{};
        job->batch_bytes = 0;
        jobs.push_back(job.get());
      }
    }
    database_.serve_reads(jobs);
    return true;
  } catch (const std::exception&) {
    for (auto& read : reads) {
      for (auto& job : read->jobs) job->reply = exception_reply();
    }
    return false;
  }
}

Reply Combiner::reply_of(PendingRead& read) noexcept {
  if (!read.is_batch) return std::move(read.jobs[0]->reply);
  try {
    Reply whole;
    auto message = batch_reply(read, whole.timings);
    if (!message) return error_reply(message.error());
    whole.message = std::move(*message);
    return whole;
  } catch (const std::exception&) {
    return exception_reply();
  }
}

Result<Bytes> Combiner::batch_reply(PendingRead& read, Timings& timings) {
  std::vector<Bytes> replies;
  for (size_t i = 0; i < read.jobs.size(); ++i) {
    Reply& reply = read.jobs[i]->reply;
    if (reply.status != KALOS_STATUS_OK) {
      std::string words = "operation " + std::to_string(i) + ": ";
      words.append(reinterpret_cast<const char*>(reply.message.data()), reply.message.size());
      return Error{reply.status, std::move(words)};
    }
    timings.queue_ns = reply.timings.queue_ns;
    timings.search_ns += reply.timings.search_ns;
    timings.fetch_ns += reply.timings.fetch_ns;
    replies.push_back(std::move(reply.message));
  }
  return encode_batch_reply(database_.commit_sequence(), replies);
}

}  // namespace kalos
