#include "engine/text/grammar/large_stack.h"

#include <pthread.h>

#include <cstring>

#include "absl/strings/str_cat.h"

namespace hydrant {

absl::Status RunOnLargeStack(size_t stack_bytes, const std::function<void()>& function) {
  pthread_attr_t attributes;
  int error = pthread_attr_init(&attributes);
  if (error == 0) {
    error = pthread_attr_setstacksize(&attributes, stack_bytes);
    pthread_t thread;
    if (error == 0) {
      const auto run = [](void* argument) -> void* {
        (*static_cast<const std::function<void()>*>(argument))();
        return nullptr;
      };
      error = pthread_create(&thread, &attributes, run,
                             const_cast<void*>(static_cast<const void*>(&function)));
    }
    pthread_attr_destroy(&attributes);
    if (error == 0) pthread_join(thread, nullptr);
  }
  if (error == 0) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat("no thread with a stack of ", stack_bytes >> 20,
                                                   " MiB: ", std::strerror(error)));
}

}  // namespace hydrant
