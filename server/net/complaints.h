// Lets a line into the log every ten seconds at most, and counts the others: whoever can cause them
// could fill the log otherwise. Of one thread.
#ifndef HYDRANT_SERVER_NET_COMPLAINTS_H_
#define HYDRANT_SERVER_NET_COMPLAINTS_H_

#include <chrono>
#include <cstdint>

namespace hydrant {

class Complaints {
 public:
  // Counts one more. Whether it may be written.
  bool Due();
  int64_t count() const { return count_; }

 private:
  int64_t count_ = 0;
  std::chrono::steady_clock::time_point next_{};
};

}  // namespace hydrant

#endif  // HYDRANT_SERVER_NET_COMPLAINTS_H_
