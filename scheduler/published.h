// A record that one thread at a time publishes and any thread reads: a sequence lock. The writer
// never waits, and no reader delays it; a reader that meets a store under way reads again.
// (H.-J. Boehm, "Can seqlocks get along with programming language memory models?", MSPC 2012,
// section 4; with release stores and acquire loads of the words instead of fences, which
// ThreadSanitizer does not model.)
#ifndef HYDRANT_SCHEDULER_PUBLISHED_H_
#define HYDRANT_SCHEDULER_PUBLISHED_H_

#include <array>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <type_traits>

namespace hydrant {

template <typename T>
class Published {
  static_assert(std::is_trivially_copyable_v<T>);
  static constexpr size_t kWords = (sizeof(T) + sizeof(uint64_t) - 1) / sizeof(uint64_t);
  using Words = std::array<uint64_t, kWords>;

 public:
  // REQUIRES: no other thread stores meanwhile
  void Store(const T& value) {
    Words words = {};
    std::memcpy(words.data(), &value, sizeof(T));
    const uint64_t version = version_.load(std::memory_order_relaxed);
    version_.store(version + 1, std::memory_order_relaxed);
    // A reader that sees a new word also sees that the version is odd, or newer.
    for (size_t i = 0; i < kWords; ++i) words_[i].store(words[i], std::memory_order_release);
    version_.store(version + 2, std::memory_order_release);
  }
  T Load() const {
    Words words;
    uint64_t version = 0;
    do {
      version = version_.load(std::memory_order_acquire);
      for (size_t i = 0; i < kWords; ++i) words[i] = words_[i].load(std::memory_order_acquire);
    } while (version % 2 != 0 || version_.load(std::memory_order_relaxed) != version);
    T value;
    std::memcpy(static_cast<void*>(&value), words.data(), sizeof(T));
    return value;
  }

 private:
  std::atomic<uint64_t> version_{0};  // odd while a store is under way
  std::array<std::atomic<uint64_t>, kWords> words_ = {};
};

}  // namespace hydrant

#endif  // HYDRANT_SCHEDULER_PUBLISHED_H_
