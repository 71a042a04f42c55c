// All sequences that have not ended: the queue, the live ones in their order, and indexes by time.
// Moves between queue and live list keep the counts right. Owned by the scheduler's thread.
#ifndef HYDRANT_SCHEDULER_SEQUENCE_TABLE_H_
#define HYDRANT_SCHEDULER_SEQUENCE_TABLE_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "scheduler/fair_queue.h"
#include "scheduler/request.h"
#include "scheduler/sequence.h"

namespace hydrant {

class SequenceTable {
 public:
  explicit SequenceTable(std::map<std::string, double> tenant_weights)
      : queue_(std::move(tenant_weights)) {}

  // Queues a new sequence. REQUIRES: no other has its handle
  Sequence* Add(const std::string& tenant, std::unique_ptr<Sequence> sequence);
  // Takes it out of all lists; it has ended.
  std::unique_ptr<Sequence> Remove(Sequence* sequence);
  Sequence* Find(RequestHandle handle) const;  // null: it has ended, or never was

  // The queue's head is admitted in two moves: it leaves the queue, and joins the live ones.
  void LeaveQueue(Sequence* sequence);
  void AddLive(Sequence* sequence);
  // A live sequence is preempted, and waits in its old place of the queue. `to`: kPreempted or
  // kSwapped
  void Requeue(Sequence* sequence, Phase to);
  // A token of the sequence has become known; it may be waiting.
  void AddToken(Sequence* sequence, TokenId token);

  bool Empty() const { return sequences_.empty(); }
  size_t size() const { return sequences_.size(); }
  const std::vector<Sequence*>& live() const { return live_; }  // by QueueOrder
  FairQueue& queue() { return queue_; }
  const FairQueue& queue() const { return queue_; }
  int64_t queued_tokens() const { return queued_tokens_; }  // known tokens of the queue

  // The sequence whose deadline passed first; null: none has passed.
  Sequence* PastDeadline(TimeUs now) const { return FirstUntil(now, deadlines_); }
  // SequenceLatency::begin_by, and the first sequence for which it has passed.
  void SetBeginBy(Sequence* sequence, std::optional<TimeUs> by);
  Sequence* PastBeginBy(TimeUs now) const { return FirstUntil(now, begin_by_); }
  bool AnyBeginBy() const { return !begin_by_.empty(); }

 private:
  using TimeIndex = std::set<std::pair<TimeUs, RequestHandle>>;
  Sequence* FirstUntil(TimeUs now, const TimeIndex& index) const;

  std::unordered_map<RequestHandle, std::unique_ptr<Sequence>> sequences_;
  FairQueue queue_;
  std::vector<Sequence*> live_;
  TimeIndex deadlines_, begin_by_;
  int64_t queued_tokens_ = 0;
};

}  // namespace hydrant

#endif  // HYDRANT_SCHEDULER_SEQUENCE_TABLE_H_
