// One HTTP client by libcurl, which keeps its connections from one request to the next. Requests
// end where they fail: no redirect is followed and nothing is tried again (hub_client.h does both).
// Not thread safe.
#ifndef HYDRANT_ENGINE_MODEL_HUB_HTTP_SESSION_H_
#define HYDRANT_ENGINE_MODEL_HUB_HTTP_SESSION_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace hydrant::hub {

struct HttpRequest {
  std::string url;
  std::string bearer;      // a token; "": none
  int64_t first_byte = 0;  // above 0: the rest of the file from there (Range)
  // Of the whole request; 0: no limit while at least 1 KiB a second arrives.
  std::chrono::milliseconds timeout{0};
};

// What stands before the body.
struct HttpHead {
  int status = 0;
  std::map<std::string, std::string> headers;       // names in lower case; at most 128
  std::string redirect_url;                         // absolute; "" where there is none
  std::optional<std::chrono::seconds> retry_after;  // where the server says when

  bool IsRedirect() const { return status / 100 == 3 && !redirect_url.empty(); }
  bool HasFile() const { return status == 200 || status == 206; }
  std::string Header(const std::string& lower_case_name) const;  // "" where there is none
};

// Takes a part of a body; the head is complete. An error ends the request with it.
using BodySink = std::function<absl::Status(const HttpHead& head, std::string_view bytes)>;

class HttpSession {
 public:
  // Polled several times a second while a request runs; true ends it as Cancelled.
  using Cancelled = std::function<bool()>;

  virtual ~HttpSession() = default;

  // `sink` gets the body of a 200 or 206 response only. Unavailable: the connection failed or
  // broke, and another try may succeed. FailedPrecondition: another try would not help (a
  // certificate that is not trusted).
  virtual absl::StatusOr<HttpHead> Get(const HttpRequest& request, const BodySink& sink) = 0;
};

absl::StatusOr<std::unique_ptr<HttpSession>> NewHttpSession(HttpSession::Cancelled cancelled);

// "https://host:443" of an address: who gets what is sent there. "" where it is none.
std::string OriginOf(const std::string& url);

// As a part of an address: everything but letters, digits and "-._~" as %XX, '/' too unless
// `keep_slashes`.
std::string UrlEncoded(std::string_view text, bool keep_slashes);

}  // namespace hydrant::hub

#endif  // HYDRANT_ENGINE_MODEL_HUB_HTTP_SESSION_H_
