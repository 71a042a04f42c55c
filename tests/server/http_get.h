// A GET over a plain socket, as probes and scrapers send it, independent of the server's HTTP code.
#ifndef HYDRANT_TESTS_SERVER_HTTP_GET_H_
#define HYDRANT_TESTS_SERVER_HTTP_GET_H_

#include <string>

namespace hydrant {

struct HttpReply {
  int status = 0;  // 0: no answer
  std::string headers;
  std::string body;
};

// `address` is 127.0.0.1:port. Reads until the server closes the connection.
HttpReply HttpGet(const std::string& address, const std::string& path);

// False: refused.
bool Connect(int socket, const std::string& address);
// A silent connection; the caller closes it. -1: refused.
int ConnectTo(const std::string& address);

}  // namespace hydrant

#endif  // HYDRANT_TESTS_SERVER_HTTP_GET_H_
