#include "tools/simulator/replica.h"

#include <algorithm>
#include <cmath>
#include <iterator>

#include "kernels/check.h"

namespace hydrant::sim {

Replica::Replica(const ReplicaOptions& options, uint64_t seed)
    : limits_(options.limits.engine),
      heads_alike_(options.limits.heads_alike),
      policy_under_pressure_(options.scheduler.policy_under_pressure),
      cost_(options.cost),
      random_(seed),
      tokenizer_(options.limits.vocab_size),
      engine_(limits_, seed + 1),
      gate_(options.scheduler),
      scheduler_(limits_, options.scheduler, &tokenizer_) {}

std::optional<Failed> Replica::Submit(RequestHandle handle, Request request, TimeUs now) {
  std::variant<CheckedRequest, Failed> checked =
      CheckRequest(std::move(request), limits_, tokenizer_, policy_under_pressure_);
  if (auto* failed = std::get_if<Failed>(&checked)) return std::move(*failed);
  Arrival arrival{handle, std::move(std::get<CheckedRequest>(checked)), now};
  if (auto refused = gate_.Enter({&handle, 1}, arrival.request.request, now)) return refused;
  inbox_.push_back(std::move(arrival));
  if (ends_.empty()) Begin(now);
  return std::nullopt;
}

std::optional<TimeUs> Replica::NextAt() const {
  return ends_.empty() ? std::nullopt : std::optional(ends_.front());
}

void Replica::Advance() {
  const TimeUs now = ends_.front();
  ends_.pop_front();
  HYDRANT_CHECK(engine_.Collect(&result_).ok());
  scheduler_.Apply(result_, now);
  Publish();
  Begin(now);
}

// Enqueues steps up to the serving loop's limit in flight.
void Replica::Begin(TimeUs now) {
  for (Arrival& arrival : std::exchange(inbox_, {}))
    scheduler_.Add(arrival.handle, std::move(arrival.request), arrival.at);
  while (std::cmp_less(ends_.size(), limits_.max_steps_in_flight)) {
    const Batch& batch = scheduler_.Schedule(now);
    if (!batch.HasWork()) break;
    engine_.Enqueue(batch);
    const TimeUs free_at = ends_.empty() ? now : std::max(now, ends_.back());
    ends_.push_back(free_at + TimeOfStep());
  }
  if (!ends_.empty()) return;
  Publish();
  HYDRANT_CHECK(scheduler_.Empty());  // a live sequence has work
}

// At least a microsecond, so that time advances.
TimeUs Replica::TimeOfStep() {
  StepWork work = scheduler_.newest_work();
  work.pages *= heads_alike_;
  double us = cost_.Predict(work);
  if (cost_.noise > 0) {  // of mean one
    const double deviation = cost_.NoiseOf(us);
    us *= std::lognormal_distribution<double>(-deviation * deviation / 2, deviation)(random_);
  }
  return std::max<TimeUs>(1, std::llround(us));
}

void Replica::Publish() {
  std::vector<Event> events = scheduler_.TakeEvents();
  int64_t inbox_tokens = 0;
  for (const Arrival& arrival : inbox_)
    inbox_tokens += static_cast<int64_t>(arrival.request.request.prompt.size());
  gate_.SetQueue(scheduler_.Forecast(), static_cast<int>(inbox_.size()), inbox_tokens);
  for (const Event& event : events) {
    if (std::holds_alternative<Finished>(event.what) || std::holds_alternative<Failed>(event.what))
      gate_.Remove(event.handle);
  }
  events_.insert(events_.end(), std::make_move_iterator(events.begin()),
                 std::make_move_iterator(events.end()));
}

}  // namespace hydrant::sim
