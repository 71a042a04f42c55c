// Requests to the hub: follows redirects, sends the token to the hub only, retries passing errors,
// and explains refusals. Not thread safe.
#ifndef HYDRANT_ENGINE_MODEL_HUB_HUB_CLIENT_H_
#define HYDRANT_ENGINE_MODEL_HUB_HUB_CLIENT_H_

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/model/hub/http_session.h"
#include "engine/model/hub/hub_settings.h"
#include "engine/model/hub/model_reference.h"

namespace hydrant::hub {

// Receives a body over one or several attempts.
class BodyReceiver {
 public:
  virtual ~BodyReceiver() = default;
  // Begins an attempt; returns the first byte to request.
  virtual absl::StatusOr<int64_t> BeginAttempt() = 0;
  // The server sends from byte 0 regardless of the request: drop the bytes received so far.
  virtual absl::Status Restart() = 0;
  virtual absl::Status Take(std::string_view bytes) = 0;
};

struct HubClientOptions {
  HubSettings settings;
  ModelReference reference;         // for messages
  std::function<bool()> cancelled;  // polled during waits; may be empty
  // Gets the reason of a failed attempt and the wait before the next; may be empty.
  std::function<void(const std::string&)> note;
  // Waits; replaced in tests. Empty: sleeps, until `cancelled`.
  std::function<void(std::chrono::seconds)> wait;
};

class HubClient {
 public:
  static absl::StatusOr<std::unique_ptr<HubClient>> Create(HubClientOptions options);

  // `path` begins with '/' and follows the endpoint. The call fails after five attempts in a row
  // that bring less than 64 KiB each. `timeout`: per attempt, as in HttpRequest. Errors are one
  // line: PermissionDenied (gated, or a bad token), NotFound (repository, revision or file),
  // ResourceExhausted (the hub's rate limit), Unavailable (not reached), Cancelled, or the error
  // that `receiver` returned.
  absl::StatusOr<HttpHead> Get(const std::string& path, BodyReceiver* receiver,
                               std::chrono::milliseconds timeout = std::chrono::milliseconds(0));

  // A body of at most `max_bytes`; `link`, if not null, gets the Link header.
  absl::StatusOr<std::string> GetText(const std::string& path, size_t max_bytes,
                                      std::string* link = nullptr);

  const HubSettings& settings() const { return options_.settings; }

 private:
  struct Attempt;

  explicit HubClient(HubClientOptions options) : options_(std::move(options)) {}
  Attempt TryOnce(const std::string& path, BodyReceiver* receiver,
                  std::chrono::milliseconds timeout);
  absl::StatusOr<HttpHead> FollowRedirects(HttpRequest request, const BodySink& sink);
  absl::Status Unreached(const absl::Status& status) const;
  void Wait(std::chrono::seconds time);

  const HubClientOptions options_;
  std::string origin_;  // of the endpoint
  std::unique_ptr<HttpSession> session_;
  bool reached_ = false;  // any server has answered
};

}  // namespace hydrant::hub

#endif  // HYDRANT_ENGINE_MODEL_HUB_HUB_CLIENT_H_
