#include "scheduler/request_gate.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "scheduler/pacer.h"

namespace hydrant {

namespace {

// Used while the admission rate is unknown.
constexpr double kRetryDefaultUs = 1e6;
// A request is accepted if its estimated wait is below this share of its allowed wait: the estimate
// is rough, and a request refused later has waited in vain.
constexpr double kShareOfWait = 0.75;

}  // namespace

std::optional<Failed> RequestGate::Enter(std::span<const RequestHandle> samples,
                                         const Request& request, TimeUs now) {
  const auto count = static_cast<int>(samples.size());
  if (count > options_.max_num_queued_reqs) {
    return Failed{.status = absl::InvalidArgumentError(
                      absl::StrCat("sampling.n: ", count, " samples exceed the queue's limit of ",
                                   options_.max_num_queued_reqs, " requests")),
                  .reason = "INVALID"};
  }
  const std::string& request_id = request.request_id;
  const OwnId id{request.owner, request_id};
  if (!request_id.empty() && ids_.contains(id)) {
    return Failed{.status = absl::AlreadyExistsError(
                      absl::StrCat("request_id: ", request_id, " names a request that is live")),
                  .reason = "DUPLICATE_REQUEST_ID"};
  }
  const auto tokens =
      static_cast<int64_t>(count * (request.prompt.size() + request.resume_token_ids.size()));
  // A running step is a part of the wait.
  forecast_.rate.Observe(now, forecast_.waiting > 0, 0, 0);
  if (std::optional<Failed> full = Full(count, tokens)) return full;
  if (std::optional<Failed> late = TooLate(request, now)) return late;
  live_.emplace(samples.front(), Live{id, {samples.begin(), samples.end()}});
  for (const RequestHandle sample : samples) first_of_.emplace(sample, samples.front());
  if (!request_id.empty()) ids_.emplace(id, samples.front());
  num_reqs_ += count;
  num_tokens_ += tokens;
  return std::nullopt;
}

std::optional<Failed> RequestGate::Full(int count, int64_t tokens) const {
  const bool reqs_full = num_reqs_ + count > options_.max_num_queued_reqs;
  // An empty queue takes any prompt; otherwise one longer than the limit would always be refused.
  const bool tokens_full = num_reqs_ > 0 && num_tokens_ + tokens > options_.max_num_queued_tokens;
  if (!reqs_full && !tokens_full) return std::nullopt;
  return Failed{
      .status = absl::ResourceExhaustedError(
          reqs_full ? absl::StrCat("queue full: ", num_reqs_, " requests wait, ",
                                   count == 1 ? "" : absl::StrCat(count, " samples come, "),
                                   "the limit is ", options_.max_num_queued_reqs)
                    : absl::StrCat("queue full: ", num_tokens_, " tokens wait, ", tokens,
                                   " more exceed the limit of ", options_.max_num_queued_tokens)),
      .reason = "QUEUE_FULL",
      .retry_after_us = RetryWhenFull(count, tokens)};
}

TimeUs RequestGate::RetryWhenFull(int count, int64_t tokens) const {
  const double reqs_over = std::max(0, num_reqs_ + count - options_.max_num_queued_reqs);
  const auto tokens_over = static_cast<double>(
      std::max<int64_t>(0, num_tokens_ + tokens - options_.max_num_queued_tokens));
  const double wait_us =
      std::max(forecast_.rate.UsForRequests(reqs_over), forecast_.rate.UsForTokens(tokens_over));
  return RetryAfter(wait_us > 0 ? wait_us : kRetryDefaultUs);
}

// Considers the queue only: only the scheduler knows the cached part of the prompt.
std::optional<Failed> RequestGate::TooLate(const Request& request, TimeUs now) const {
  const auto bound = BoundFirstToken(options_, request.slo, request.deadline, now, 0);
  if (!bound.has_value()) return std::nullopt;
  double wait_us = forecast_.reading_us;
  if (forecast_.waiting > 0) wait_us += forecast_.rate.UsForRequests(num_reqs_);
  const double bearable_us = kShareOfWait * std::max(0.0, static_cast<double>(bound->by - now));
  if (wait_us <= bearable_us) return std::nullopt;
  return Failed{.status = absl::ResourceExhaustedError(absl::StrCat(
                    bound->what, ": the first token cannot come within ", (bound->by - now) / 1000,
                    " ms: ", num_reqs_, " requests wait, for about ",
                    static_cast<int64_t>(wait_us / 1000), " ms")),
                .reason = "OVERLOADED",
                .retry_after_us = RetryAfter(wait_us - bearable_us)};
}

void RequestGate::Remove(RequestHandle sample) {
  const auto first = first_of_.find(sample);
  if (first == first_of_.end()) return;
  const auto it = live_.find(first->second);
  first_of_.erase(first);
  std::erase(it->second.samples, sample);
  if (!it->second.samples.empty()) return;
  ids_.erase(it->second.id);
  live_.erase(it);
}

std::optional<RequestHandle> RequestGate::Find(const std::string& owner,
                                               const std::string& request_id) const {
  const auto it = ids_.find({owner, request_id});
  return it == ids_.end() ? std::nullopt : std::optional(it->second);
}

std::vector<RequestHandle> RequestGate::LiveSamples(RequestHandle first) const {
  const auto it = live_.find(first);
  return it == live_.end() ? std::vector<RequestHandle>() : it->second.samples;
}

void RequestGate::SetQueue(const QueueForecast& scheduler, int inbox_requests,
                           int64_t inbox_tokens) {
  forecast_ = scheduler;
  num_reqs_ = scheduler.waiting + inbox_requests;
  num_tokens_ = scheduler.tokens + inbox_tokens;
}

}  // namespace hydrant
