// An HTTP/2 connection without a request, to see what the server says of the connection itself.
#ifndef HYDRANT_TESTS_SERVER_HTTP2_WATCH_H_
#define HYDRANT_TESTS_SERVER_HTTP2_WATCH_H_

#include <string>

namespace hydrant {

class Http2Watch {
 public:
  // `address` is unix:/path. Returns when the server has said its first word; aborts where it says
  // none: a fault of the test itself.
  explicit Http2Watch(const std::string& address);
  ~Http2Watch();
  Http2Watch(const Http2Watch&) = delete;
  Http2Watch& operator=(const Http2Watch&) = delete;

  // Reads frames, answering what has to be answered, until a GOAWAY comes; false where the
  // connection ends without one.
  bool WaitForGoaway();

 private:
  // The type of the next frame, -1 at the end.
  int NextFrame();
  bool Read(void* to, size_t bytes);
  void Write(const std::string& bytes);

  int fd_;
};

}  // namespace hydrant

#endif  // HYDRANT_TESTS_SERVER_HTTP2_WATCH_H_
