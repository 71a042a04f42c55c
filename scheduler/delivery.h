// Events for the clients: tokens, progress, ends. Decides whether a sampled token ends its
// sequence; the scheduler ends it. Owned by the scheduler's thread.
#ifndef HYDRANT_SCHEDULER_DELIVERY_H_
#define HYDRANT_SCHEDULER_DELIVERY_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include "engine/run/step/batch.h"
#include "engine/text/tokenizer/tokenizer.h"
#include "scheduler/options.h"
#include "scheduler/request.h"
#include "scheduler/sequence.h"
#include "scheduler/sequence_table.h"
#include "scheduler/slo_control.h"

namespace hydrant {

// How a sequence ends. Usage and context are added when it does.
using Ending = std::variant<Finished, Failed>;

class Delivery {
 public:
  // Borrows all; they outlive it.
  Delivery(const EngineLimits& limits, const SchedulerOptions& options, const Tokenizer* tokenizer,
           SequenceTable* table, SloControl* slo)
      : limits_(limits), options_(options), tokenizer_(*tokenizer), table_(*table), slo_(*slo) {}

  void Send(const Sequence& sequence, decltype(Event::what) what) {
    events_.push_back({sequence.handle, std::move(what)});
  }
  // Progress events to clients that have heard nothing for progress_interval_us.
  void SendProgress(TimeUs now);
  // Once; a later report is ignored.
  void SendKeptEntries(const KeptEntries& kept, Sequence* sequence);
  // Token number `index` of the sequence has been sampled; a sequence that replays knows it
  // already. `logprobs`: null where they were not asked for. Unset: the sequence goes on.
  std::optional<Ending> Sampled(int64_t index, TokenId token, const TokenLogprobs* logprobs,
                                TimeUs now, Sequence* sequence);
  // The prompt has been read, and no token follows it.
  Ending Pooled(const std::vector<float>& embedding, TimeUs now, Sequence* sequence);
  // Completes the ending's event and sends it.
  void SendEnd(Ending ending, std::shared_ptr<const Context> context, const Sequence& sequence);

  // Events since the last call, in order.
  std::vector<Event> TakeEvents() { return std::exchange(events_, {}); }
  // Events are large: they should not move as the list grows.
  void Reserve(size_t more) { events_.reserve(events_.size() + more); }
  uint64_t generation_tokens() const { return generation_tokens_; }  // sampled and used
  // The longest wait of requests that have not begun, at the last progress scan.
  TimeUs longest_wait_us() const { return longest_wait_us_; }

 private:
  std::optional<Ending> WithoutToken(int64_t index, Sequence* sequence);
  std::optional<Ending> Deliver(TokenId token, const TokenLogprobs* logprobs, TimeUs now,
                                Sequence* sequence);

  const EngineLimits& limits_;
  const SchedulerOptions& options_;
  const Tokenizer& tokenizer_;
  SequenceTable& table_;
  SloControl& slo_;
  std::vector<Event> events_;
  uint64_t generation_tokens_ = 0;
  TimeUs next_progress_scan_ = 0;
  TimeUs longest_wait_us_ = 0;
};

}  // namespace hydrant

#endif  // HYDRANT_SCHEDULER_DELIVERY_H_
