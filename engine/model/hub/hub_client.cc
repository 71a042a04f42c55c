#include "engine/model/hub/hub_client.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <thread>
#include <utility>

#include "engine/model/hub/hub_errors.h"
#include "engine/model/text.h"
#include "kernels/status_macros.h"

namespace hydrant::hub {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr int kMaxAttempts = 5;  // in a row without progress
constexpr int kMaxRedirects = 8;
constexpr seconds kMaxWait{300};
constexpr milliseconds kPollInterval{50};
constexpr milliseconds kTextTimeout{300'000};  // per attempt at an API call
// Minimum bytes for an attempt to count as progress, so that a hub that sends only a few bytes now
// and then is given up.
constexpr size_t kSomeBytes = 64 * 1024;

bool MayPass(int status) {
  return status == 408 || status == 429 || status == 500 || status == 502 || status == 503 ||
         status == 504;
}

// A 206 must begin at the requested byte: "bytes 100-199/200".
absl::Status CheckRange(const HttpHead& head, int64_t first_byte) {
  const std::string range = head.Header("content-range");
  if (range.starts_with(fmt::format("bytes {}-", first_byte))) return absl::OkStatus();
  return absl::DataLossError(fmt::format("asked for the bytes from {} on, the server sends {}",
                                         first_byte, Quoted(range)));
}

class TextReceiver final : public BodyReceiver {
 public:
  explicit TextReceiver(size_t max_bytes) : max_bytes_(max_bytes) {}

  absl::StatusOr<int64_t> BeginAttempt() override {
    text_.clear();
    return 0;
  }
  absl::Status Restart() override { return absl::OkStatus(); }
  absl::Status Take(std::string_view bytes) override {
    if (text_.size() + bytes.size() > max_bytes_)
      return absl::InvalidArgumentError(
          fmt::format("the hub's answer is longer than {} bytes", max_bytes_));
    text_ += bytes;
    return absl::OkStatus();
  }
  std::string&& text() && { return std::move(text_); }

 private:
  const size_t max_bytes_;
  std::string text_;
};

}  // namespace

struct HubClient::Attempt {
  absl::StatusOr<HttpHead> result;
  bool may_pass = false;
  bool brought_some = false;
  std::optional<seconds> retry_after = std::nullopt;
};

absl::StatusOr<std::unique_ptr<HubClient>> HubClient::Create(HubClientOptions options) {
  std::unique_ptr<HubClient> client(new HubClient(std::move(options)));
  client->origin_ = OriginOf(client->settings().endpoint);
  if (client->origin_.empty()) {
    return absl::InvalidArgumentError(
        fmt::format("HF_ENDPOINT: {} is not an address", Quoted(client->settings().endpoint)));
  }
  HYDRANT_ASSIGN_OR_RETURN(client->session_, NewHttpSession(client->options_.cancelled));
  return client;
}

absl::StatusOr<HttpHead> HubClient::Get(const std::string& path, BodyReceiver* receiver,
                                        milliseconds timeout) {
  for (int failed = 0;;) {
    Attempt attempt = TryOnce(path, receiver, timeout);
    if (attempt.result.ok() || !attempt.may_pass) return std::move(attempt.result);
    failed = attempt.brought_some ? 1 : failed + 1;
    const seconds wait = attempt.retry_after.value_or(seconds(1 << (failed - 1)));
    if (failed == kMaxAttempts || wait > kMaxWait) return std::move(attempt.result);
    if (options_.note) {
      options_.note(fmt::format("{}; trying again in {} s",
                                std::string(attempt.result.status().message()), wait.count()));
    }
    Wait(wait);
    if (options_.cancelled && options_.cancelled()) return absl::CancelledError("interrupted");
  }
}

HubClient::Attempt HubClient::TryOnce(const std::string& path, BodyReceiver* receiver,
                                      milliseconds timeout) {
  const absl::StatusOr<int64_t> first_byte = receiver->BeginAttempt();
  if (!first_byte.ok()) return {.result = first_byte.status()};
  size_t brought = 0;
  const BodySink sink = [&](const HttpHead& head, std::string_view bytes) -> absl::Status {
    if (brought == 0) {
      if (head.status == 206) HYDRANT_RETURN_IF_ERROR(CheckRange(head, *first_byte));
      if (head.status == 200 && *first_byte > 0) HYDRANT_RETURN_IF_ERROR(receiver->Restart());
    }
    brought += bytes.size();
    return receiver->Take(bytes);
  };
  absl::StatusOr<HttpHead> head = FollowRedirects({.url = settings().endpoint + path,
                                                   .bearer = "",
                                                   .first_byte = *first_byte,
                                                   .timeout = timeout},
                                                  sink);
  if (!head.ok()) {
    const bool broke = absl::IsUnavailable(head.status());
    // Before the first answer, an unresolved name or a closed port is unlikely to be a passing
    // fault.
    return {.result = broke ? Unreached(head.status()) : head.status(),
            .may_pass = broke && reached_,
            .brought_some = brought >= kSomeBytes};
  }
  if (head->HasFile()) return {.result = std::move(head)};
  const bool may_pass = MayPass(head->status);
  const std::optional<seconds> retry_after = head->retry_after;
  return {.result = RefusalOf(*head, {settings(), options_.reference, path}),
          .may_pass = may_pass,
          .brought_some = false,
          .retry_after = retry_after};
}

// Redirects lead to other hosts (storage, a CDN) by signed URLs; the token is sent to the endpoint
// only.
absl::StatusOr<HttpHead> HubClient::FollowRedirects(HttpRequest request, const BodySink& sink) {
  for (int hop = 0; hop <= kMaxRedirects; ++hop) {
    request.bearer = OriginOf(request.url) == origin_ ? settings().token : "";
    HYDRANT_ASSIGN_OR_RETURN(HttpHead head, session_->Get(request, sink));
    reached_ = true;
    if (!head.IsRedirect()) return head;
    if (request.url.starts_with("https://") && !head.redirect_url.starts_with("https://")) {
      return absl::FailedPreconditionError(
          fmt::format("the hub leads from https to {}, which is not followed",
                      Quoted(OriginOf(head.redirect_url))));
    }
    request.url = std::move(head.redirect_url);
  }
  return absl::FailedPreconditionError(
      fmt::format("the hub leads on more than {} times", kMaxRedirects));
}

absl::Status HubClient::Unreached(const absl::Status& status) const {
  return absl::UnavailableError(fmt::format("{} {}: {}", reached_ ? "lost" : "cannot reach",
                                            settings().endpoint, std::string(status.message())));
}

void HubClient::Wait(seconds time) {
  if (options_.wait) {
    options_.wait(time);
    return;
  }
  const auto until = std::chrono::steady_clock::now() + time;
  while (std::chrono::steady_clock::now() < until) {
    if (options_.cancelled && options_.cancelled()) return;
    std::this_thread::sleep_for(kPollInterval);
  }
}

absl::StatusOr<std::string> HubClient::GetText(const std::string& path, size_t max_bytes,
                                               std::string* link) {
  TextReceiver receiver(max_bytes);
  HYDRANT_ASSIGN_OR_RETURN(const HttpHead head, Get(path, &receiver, kTextTimeout));
  if (link != nullptr) *link = head.Header("link");
  return std::move(receiver).text();
}

}  // namespace hydrant::hub
