// Ctrl-C, while something goes on that can be ended by itself: an answer, not the conversation.
#ifndef HYDRANT_CLIENT_INTERRUPT_H_
#define HYDRANT_CLIENT_INTERRUPT_H_

#include <functional>
#include <thread>

namespace hydrant {

// As long as it lives the first Ctrl-C calls `then` in a thread of its own; a second one ends the
// process. REQUIRES: one at a time in a process
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
