#include "tools/load/targets/http_get.h"

#include <curl/curl.h>

#include <cmath>
#include <memory>

#include "absl/strings/str_cat.h"
#include "engine/model/hub/no_proxy.h"

namespace hydrant::load {

absl::StatusOr<std::string> HttpGet(const std::string& url, const std::string& bearer,
                                    double seconds) {
  const std::unique_ptr<CURL, void (*)(CURL*)> easy(curl_easy_init(), curl_easy_cleanup);
  std::unique_ptr<curl_slist, void (*)(curl_slist*)> headers(nullptr, curl_slist_free_all);
  if (!bearer.empty())
    headers.reset(
        curl_slist_append(nullptr, absl::StrCat("Authorization: Bearer ", bearer).c_str()));
  std::string body;
  curl_easy_setopt(easy.get(), CURLOPT_URL, url.c_str());
  curl_easy_setopt(easy.get(), CURLOPT_HTTPHEADER, headers.get());
  curl_easy_setopt(easy.get(), CURLOPT_NOSIGNAL, 1L);
  UseNoProxyOnThisMachine(easy.get());
  curl_easy_setopt(easy.get(), CURLOPT_TIMEOUT_MS, std::lround(seconds * 1000.0));
  curl_easy_setopt(easy.get(), CURLOPT_WRITEDATA, &body);
  curl_easy_setopt(
      easy.get(), CURLOPT_WRITEFUNCTION,
      +[](const char* bytes, size_t size, size_t count, void* to) {
        static_cast<std::string*>(to)->append(bytes, size * count);
        return size * count;
      });
  if (const CURLcode code = curl_easy_perform(easy.get()); code != CURLE_OK)
    return absl::UnavailableError(curl_easy_strerror(code));
  long status = 0;
  curl_easy_getinfo(easy.get(), CURLINFO_RESPONSE_CODE, &status);
  if (status != 200) return absl::UnavailableError(absl::StrCat("HTTP ", status));
  return body;
}

}  // namespace hydrant::load
