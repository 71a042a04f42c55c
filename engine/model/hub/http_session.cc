#include "engine/model/hub/http_session.h"

#include <curl/curl.h>
#include <fmt/format.h>

#include <array>
#include <utility>

#include "absl/strings/ascii.h"
#include "engine/model/hub/no_proxy.h"
#include "engine/model/text.h"

namespace hydrant::hub {
namespace {

constexpr long kConnectSeconds = 15;
constexpr long kStallSeconds = 30;  // a transfer fails after this time below kStallBytes a second
constexpr long kStallBytes = 1024;
constexpr long kBufferBytes = 512 * 1024;
constexpr size_t kMaxHeaders = 128;
// Limits for reading an unused body, such as an error page: within these limits it is read to its
// end, so that the connection can be reused.
constexpr size_t kMaxUnwantedBytes = 64 * 1024;
constexpr std::chrono::seconds kMaxUnwantedTime{5};

using CurlUrl = std::unique_ptr<CURLU, void (*)(CURLU*)>;

std::string UrlPart(CURLU* url, CURLUPart part) {
  char* text = nullptr;
  if (curl_url_get(url, part, &text, CURLU_DEFAULT_PORT) != CURLUE_OK) return "";
  std::string result(text);
  curl_free(text);
  return result;
}

bool IsHopeless(CURLcode code) {
  return code == CURLE_URL_MALFORMAT || code == CURLE_UNSUPPORTED_PROTOCOL ||
         code == CURLE_PEER_FAILED_VERIFICATION || code == CURLE_SSL_CACERT_BADFILE ||
         code == CURLE_SSL_CERTPROBLEM || code == CURLE_FAILED_INIT || code == CURLE_OUT_OF_MEMORY;
}

// State of one request for libcurl's callbacks.
struct Transfer {
  const BodySink* sink = nullptr;
  HttpHead head;
  absl::Status sink_status;
  size_t unwanted_bytes = 0;
  std::chrono::steady_clock::time_point unwanted_since = {};
  bool left_unwanted = false;  // reading stopped at the limits above
};

// A header line. A new status line begins a new head, as after "100 Continue".
size_t OnHeader(const char* bytes, size_t size, size_t count, void* to) {
  HttpHead& head = static_cast<Transfer*>(to)->head;
  const std::string_view line(bytes, size * count);
  if (line.starts_with("HTTP/")) {
    head.headers.clear();
  } else if (const size_t colon = line.find(':');
             colon != std::string_view::npos && head.headers.size() < kMaxHeaders) {
    std::string value(line.substr(colon + 1));
    absl::StripAsciiWhitespace(&value);
    head.headers[absl::AsciiStrToLower(std::string(line.substr(0, colon)))] = std::move(value);
  }
  return line.size();
}

class CurlSession final : public HttpSession {
 public:
  CurlSession(CURL* easy, Cancelled cancelled)
      : easy_(easy, curl_easy_cleanup), cancelled_(std::move(cancelled)) {
    Set(CURLOPT_NOSIGNAL, 1L);
    UseNoProxyOnThisMachine(easy);
    Set(CURLOPT_PROTOCOLS_STR, "http,https");
    Set(CURLOPT_USERAGENT, "hydrant");
    Set(CURLOPT_CONNECTTIMEOUT, kConnectSeconds);
    Set(CURLOPT_LOW_SPEED_LIMIT, kStallBytes);
    Set(CURLOPT_LOW_SPEED_TIME, kStallSeconds);
    Set(CURLOPT_BUFFERSIZE, kBufferBytes);
    Set(CURLOPT_ERRORBUFFER, error_.data());
    Set(CURLOPT_HEADERFUNCTION, OnHeader);
    Set(CURLOPT_WRITEFUNCTION, OnBody);
    Set(CURLOPT_NOPROGRESS, 0L);
    Set(CURLOPT_XFERINFODATA, this);
    Set(CURLOPT_XFERINFOFUNCTION, OnProgress);
  }

  absl::StatusOr<HttpHead> Get(const HttpRequest& request, const BodySink& sink) override {
    const std::unique_ptr<curl_slist, void (*)(curl_slist*)> headers(
        request.bearer.empty()
            ? nullptr
            : curl_slist_append(nullptr, ("Authorization: Bearer " + request.bearer).c_str()),
        curl_slist_free_all);
    const std::string range = fmt::format("{}-", request.first_byte);
    transfer_ = {};
    transfer_.sink = &sink;
    Set(CURLOPT_TIMEOUT_MS, static_cast<long>(request.timeout.count()));
    error_[0] = '\0';
    Set(CURLOPT_URL, request.url.c_str());
    Set(CURLOPT_HTTPHEADER, headers.get());
    Set(CURLOPT_RANGE, request.first_byte > 0 ? range.c_str() : nullptr);
    Set(CURLOPT_HEADERDATA, &transfer_);
    Set(CURLOPT_WRITEDATA, this);
    const CURLcode code = curl_easy_perform(easy_.get());
    Set(CURLOPT_HTTPHEADER, nullptr);
    if (code != CURLE_OK && !transfer_.left_unwanted) return Failure(code);
    FillHead(&transfer_.head);
    return std::move(transfer_.head);
  }

 private:
  template <typename Value>
  void Set(CURLoption option, Value value) {
    curl_easy_setopt(easy_.get(), option, value);
  }

  void FillHead(HttpHead* head) const {
    long status = 0;
    curl_off_t retry_after = 0;
    char* redirect = nullptr;
    curl_easy_getinfo(easy_.get(), CURLINFO_RESPONSE_CODE, &status);
    curl_easy_getinfo(easy_.get(), CURLINFO_RETRY_AFTER, &retry_after);
    curl_easy_getinfo(easy_.get(), CURLINFO_REDIRECT_URL, &redirect);
    head->status = static_cast<int>(status);
    if (retry_after > 0) head->retry_after = std::chrono::seconds(retry_after);
    if (redirect != nullptr) head->redirect_url = redirect;
  }

  absl::Status Failure(CURLcode code) const {
    if (!transfer_.sink_status.ok()) return transfer_.sink_status;
    if (code == CURLE_ABORTED_BY_CALLBACK) return absl::CancelledError("interrupted");
    const std::string why = error_[0] != '\0' ? error_.data() : curl_easy_strerror(code);
    if (IsHopeless(code)) return absl::FailedPreconditionError(why);
    return absl::UnavailableError(why);
  }

  static size_t OnBody(const char* bytes, size_t size, size_t count, void* self) {
    return static_cast<CurlSession*>(self)->TakeBody({bytes, size * count});
  }

  size_t TakeBody(std::string_view bytes) {
    HttpHead& head = transfer_.head;
    if (head.status == 0) FillHead(&head);
    if (!head.HasFile()) return PassBy(bytes.size());
    transfer_.sink_status = (*transfer_.sink)(head, bytes);
    return transfer_.sink_status.ok() ? bytes.size() : CURL_WRITEFUNC_ERROR;
  }

  size_t PassBy(size_t bytes) {
    const auto now = std::chrono::steady_clock::now();
    if (transfer_.unwanted_bytes == 0) transfer_.unwanted_since = now;
    transfer_.unwanted_bytes += bytes;
    transfer_.left_unwanted = transfer_.unwanted_bytes > kMaxUnwantedBytes ||
                              now - transfer_.unwanted_since > kMaxUnwantedTime;
    return transfer_.left_unwanted ? CURL_WRITEFUNC_ERROR : bytes;
  }

  static int OnProgress(void* self, curl_off_t, curl_off_t, curl_off_t, curl_off_t) {
    const Cancelled& cancelled = static_cast<CurlSession*>(self)->cancelled_;
    return cancelled && cancelled() ? 1 : 0;
  }

  const std::unique_ptr<CURL, void (*)(CURL*)> easy_;
  const Cancelled cancelled_;
  std::array<char, CURL_ERROR_SIZE> error_{};
  Transfer transfer_;
};

}  // namespace

std::string HttpHead::Header(const std::string& lower_case_name) const {
  const auto found = headers.find(lower_case_name);
  return found == headers.end() ? "" : found->second;
}

absl::StatusOr<std::unique_ptr<HttpSession>> NewHttpSession(HttpSession::Cancelled cancelled) {
  CURL* easy = curl_easy_init();
  if (easy == nullptr) return absl::InternalError("libcurl cannot be set up");
  return std::make_unique<CurlSession>(easy, std::move(cancelled));
}

std::string OriginOf(const std::string& url) {
  const CurlUrl parsed(curl_url(), curl_url_cleanup);
  if (parsed == nullptr ||
      curl_url_set(parsed.get(), CURLUPART_URL, url.c_str(), CURLU_NON_SUPPORT_SCHEME) != CURLUE_OK)
    return "";
  return absl::AsciiStrToLower(fmt::format("{}://{}:{}", UrlPart(parsed.get(), CURLUPART_SCHEME),
                                           UrlPart(parsed.get(), CURLUPART_HOST),
                                           UrlPart(parsed.get(), CURLUPART_PORT)));
}

std::string UrlEncoded(std::string_view text, bool keep_slashes) {
  std::string encoded;
  for (const char c : text) {
    const bool is_plain = absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '-' ||
                          c == '.' || c == '_' || c == '~' || (c == '/' && keep_slashes);
    encoded += is_plain ? std::string(1, c) : fmt::format("%{:02X}", static_cast<unsigned char>(c));
  }
  return encoded;
}

}  // namespace hydrant::hub
