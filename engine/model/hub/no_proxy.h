// Keeps libcurl from using a proxy (http_proxy, https_proxy) for servers on this machine.
#ifndef HYDRANT_ENGINE_MODEL_HUB_NO_PROXY_H_
#define HYDRANT_ENGINE_MODEL_HUB_NO_PROXY_H_

#include <curl/curl.h>

#include <cstdlib>
#include <string>

namespace hydrant {

// Excludes loopback addresses and the hosts of no_proxy from the proxy.
inline void UseNoProxyOnThisMachine(CURL* easy) {
  const char* excepted = std::getenv("no_proxy");
  if (excepted == nullptr) excepted = std::getenv("NO_PROXY");
  if (excepted == nullptr) excepted = "";
  if (std::string(excepted) == "*") return;  // curl: no proxy at all
  // CURLOPT_NOPROXY replaces the variable, so it must contain the variable's hosts.
  const std::string all = std::string(excepted).append(",localhost,127.0.0.0/8,::1");
  curl_easy_setopt(easy, CURLOPT_NOPROXY, all.c_str());
}

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_MODEL_HUB_NO_PROXY_H_
