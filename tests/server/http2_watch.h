// An HTTP/2 connection without requests, to observe the server's connection-level frames.
#ifndef HYDRANT_TESTS_SERVER_HTTP2_WATCH_H_
#define HYDRANT_TESTS_SERVER_HTTP2_WATCH_H_

#include <string>

namespace hydrant {

class Http2Watch {
 public:
  // `address` is unix:/path. Returns after the server's first frame; aborts if there is none, which
  // is an error of the test.
  explicit Http2Watch(const std::string& address);
  ~Http2Watch();
  Http2Watch(const Http2Watch&) = delete;
  Http2Watch& operator=(const Http2Watch&) = delete;

  // Reads frames, and acknowledges them, until a GOAWAY; false if the connection ends without one.
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
