// An HTTP/2 client that starts one stream with unlimited flow control and never reads its socket,
// so only the kernel's buffers hold the server back. Not thread safe.
#ifndef HYDRANT_TESTS_SERVER_NEVER_READS_H_
#define HYDRANT_TESTS_SERVER_NEVER_READS_H_

#include <string>

namespace hydrant {

class NeverReads {
 public:
  // `address` is 127.0.0.1:port, `method` "/package.Service/Method", `message` a protobuf message
  // shorter than 16 KiB. `receive_buffer` is SO_RCVBUF, bytes; the kernel doubles it.
  NeverReads(const std::string& address, const std::string& method, const std::string& message,
             int receive_buffer);
  ~NeverReads();
  NeverReads(const NeverReads&) = delete;
  NeverReads& operator=(const NeverReads&) = delete;

 private:
  const int fd_;
};

}  // namespace hydrant

#endif  // HYDRANT_TESTS_SERVER_NEVER_READS_H_
