// An HTTP client on libcurl that keeps its connections between requests. Each request is a single
// attempt without redirects (hub_client.h follows and retries). Not thread safe.
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
  int64_t first_byte = 0;  // above 0: fetch the rest of the file from there (Range)
  // For the whole request; 0: no limit while at least 1 KiB a second arrives.
  std::chrono::milliseconds timeout{0};
};

// Status and headers of a response.
struct HttpHead {
  int status = 0;
  std::map<std::string, std::string> headers;       // names in lower case; at most 128
  std::string redirect_url;                         // absolute; "" if there is none
  std::optional<std::chrono::seconds> retry_after;  // unset if the server does not give it

  bool IsRedirect() const { return status / 100 == 3 && !redirect_url.empty(); }
  bool HasFile() const { return status == 200 || status == 206; }
  std::string Header(const std::string& lower_case_name) const;  // "" if absent
};

// Gets a part of a body; the head is complete. An error ends the request and is returned.
using BodySink = std::function<absl::Status(const HttpHead& head, std::string_view bytes)>;

class HttpSession {
 public:
  // Polled several times a second during a request; true ends it as Cancelled.
  using Cancelled = std::function<bool()>;

  virtual ~HttpSession() = default;

  // `sink` gets the body of a 200 or 206 response only. Unavailable: the connection failed or
  // broke; a retry may succeed. FailedPrecondition: a retry would not help (an untrusted
  // certificate).
  virtual absl::StatusOr<HttpHead> Get(const HttpRequest& request, const BodySink& sink) = 0;
};

absl::StatusOr<std::unique_ptr<HttpSession>> NewHttpSession(HttpSession::Cancelled cancelled);

// The origin "https://host:443" of a URL, which bounds where a token is sent. "" if it is not a
// URL.
std::string OriginOf(const std::string& url);

// Percent-encodes everything but letters, digits and "-._~"; '/' too unless `keep_slashes`.
std::string UrlEncoded(std::string_view text, bool keep_slashes);

}  // namespace hydrant::hub

#endif  // HYDRANT_ENGINE_MODEL_HUB_HTTP_SESSION_H_
