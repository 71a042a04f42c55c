// Handles Ctrl-C while an answer runs: it ends the answer, not the conversation.
#ifndef HYDRANT_CLIENT_INTERRUPT_H_
#define HYDRANT_CLIENT_INTERRUPT_H_

#include <functional>
#include <thread>

namespace hydrant {

// While an OnInterrupt exists, the first Ctrl-C calls `then` on its own thread; a second Ctrl-C
// ends the process. REQUIRES: at most one exists in a process at a time
class OnInterrupt {
 public:
  explicit OnInterrupt(std::function<void()> then);
  ~OnInterrupt();
  OnInterrupt(const OnInterrupt&) = delete;
  OnInterrupt& operator=(const OnInterrupt&) = delete;

 private:
  std::thread thread_;
};

}  // namespace hydrant

#endif  // HYDRANT_CLIENT_INTERRUPT_H_
