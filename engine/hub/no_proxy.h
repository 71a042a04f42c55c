// Proxies of the environment (http_proxy, https_proxy) are for other machines.
#ifndef HYDRANT_ENGINE_HUB_NO_PROXY_H_
#define HYDRANT_ENGINE_HUB_NO_PROXY_H_

#include <curl/curl.h>

#include <cstdlib>
#include <string>

namespace hydrant {

// Connections to loopback addresses go without a proxy, and those to hosts of no_proxy, as ever.
inline void UseNoProxyOnThisMachine(CURL* easy) {
  const char* excepted = std::getenv("no_proxy");
  if (excepted == nullptr) excepted = std::getenv("NO_PROXY");
  if (excepted == nullptr) excepted = "";
  if (std::string(excepted) == "*") return;  // curl: no proxy at all
  // CURLOPT_NOPROXY replaces the variable, so it has to contain the variable's hosts.
  const std::string all = std::string(excepted).append(",localhost,127.0.0.0/8,::1");
  curl_easy_setopt(easy, CURLOPT_NOPROXY, all.c_str());
}

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_HUB_NO_PROXY_H_
