#include "scheduler/request_gate.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"

namespace hydrant {

namespace {

constexpr double kWindowUs = 10e6;
constexpr TimeUs kRetryDefaultUs = 1'000'000;  // nothing has left the queue yet: no rate to go by
constexpr TimeUs kRetryLeastUs = 10'000;
constexpr TimeUs kRetryMostUs = 60'000'000;

}  // namespace

std::optional<Failed> RequestGate::Enter(std::span<const RequestHandle> samples,
                                         const std::string& request_id, int64_t tokens,
                                         TimeUs now) {
  const auto count = static_cast<int>(samples.size());
  if (count > options_.max_num_queued_reqs) {
    return Failed{.status = absl::InvalidArgumentError(
                      absl::StrCat("sampling.n: ", count, " samples exceed the queue's limit of ",
                                   options_.max_num_queued_reqs, " requests")),
                  .reason = "INVALID"};
  }
  if (!request_id.empty() && ids_.contains(request_id)) {
    return Failed{.status = absl::AlreadyExistsError(
                      absl::StrCat("request_id: ", request_id, " names a request that is live")),
                  .reason = "DUPLICATE_REQUEST_ID"};
  }
  tokens *= count;
  const bool reqs_full = num_reqs_ + count > options_.max_num_queued_reqs;
  // An empty queue takes any prompt: one longer than the limit must not be refused for ever.
  const bool tokens_full = num_reqs_ > 0 && num_tokens_ + tokens > options_.max_num_queued_tokens;
  if (reqs_full || tokens_full) {
    Decay(now);
    return Failed{
        .status = absl::ResourceExhaustedError(
            reqs_full ? absl::StrCat("queue full: ", num_reqs_, " requests wait, ",
                                     count == 1 ? "" : absl::StrCat(count, " samples come, "),
                                     "the limit is ", options_.max_num_queued_reqs)
                      : absl::StrCat("queue full: ", num_tokens_, " tokens wait, ", tokens,
                                     " more exceed the limit of ", options_.max_num_queued_tokens)),
        .reason = "QUEUE_FULL",
        .retry_after_us = RetryAfter(count, tokens)};
  }
  live_.emplace(samples.front(), Live{request_id, {samples.begin(), samples.end()}});
  for (const RequestHandle sample : samples) first_of_.emplace(sample, samples.front());
  if (!request_id.empty()) ids_.insert(request_id);
  num_reqs_ += count;
  num_tokens_ += tokens;
  return std::nullopt;
}

void RequestGate::Leave(RequestHandle sample) {
  const auto first = first_of_.find(sample);
  if (first == first_of_.end()) return;
  const auto it = live_.find(first->second);
  first_of_.erase(first);
  std::erase(it->second.samples, sample);
  if (!it->second.samples.empty()) return;
  ids_.erase(it->second.request_id);
  live_.erase(it);
}

std::vector<RequestHandle> RequestGate::LiveSamples(RequestHandle first) const {
  const auto it = live_.find(first);
  return it == live_.end() ? std::vector<RequestHandle>() : it->second.samples;
}

void RequestGate::SetQueue(int num_requests, int64_t num_tokens, TimeUs now) {
  Decay(now);
  left_reqs_ += std::max(0, num_reqs_ - num_requests);
  left_tokens_ += static_cast<double>(std::max<int64_t>(0, num_tokens_ - num_tokens));
  num_reqs_ = num_requests;
  num_tokens_ = num_tokens;
}

void RequestGate::Decay(TimeUs now) {
  if (now <= decayed_at_) return;
  const double factor = std::exp(-static_cast<double>(now - decayed_at_) / kWindowUs);
  left_reqs_ *= factor;
  left_tokens_ *= factor;
  decayed_at_ = now;
}

TimeUs RequestGate::RetryAfter(int num_requests, int64_t tokens) const {
  if (left_reqs_ < 1e-3) return kRetryDefaultUs;
  const double reqs_over = std::max(0, num_reqs_ + num_requests - options_.max_num_queued_reqs);
  const double tokens_over = static_cast<double>(
      std::max<int64_t>(0, num_tokens_ + tokens - options_.max_num_queued_tokens));
  double wait_us = reqs_over / left_reqs_ * kWindowUs;
  if (left_tokens_ > 0) wait_us = std::max(wait_us, tokens_over / left_tokens_ * kWindowUs);
  return std::clamp(static_cast<TimeUs>(std::min(wait_us, 1e12)), kRetryLeastUs, kRetryMostUs);
}

}  // namespace hydrant
