// LRU cache with a byte budget. Not thread safe.
#ifndef HYDRANT_ENGINE_TEXT_GRAMMAR_RECENTLY_USED_H_
#define HYDRANT_ENGINE_TEXT_GRAMMAR_RECENTLY_USED_H_

#include <cstddef>
#include <list>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>

namespace hydrant {

template <typename Value>
class RecentlyUsed {
 public:
  explicit RecentlyUsed(size_t max_bytes) : max_bytes_(max_bytes) {}

  std::optional<Value> Find(const std::string& key) {
    const auto found = places_.find(key);
    if (found == places_.end()) return std::nullopt;
    entries_.splice(entries_.begin(), entries_, found->second);
    return found->second->value;
  }

  // bytes: size of the value; a value larger than the whole budget is not kept. REQUIRES: no such
  // key.
  void Insert(const std::string& key, Value value, size_t bytes) {
    bytes += 2 * key.size() + sizeof(Entry);
    if (bytes > max_bytes_) return;
    while (bytes_ + bytes > max_bytes_) {
      bytes_ -= entries_.back().bytes;
      places_.erase(entries_.back().key);
      entries_.pop_back();
    }
    entries_.push_front({key, std::move(value), bytes});
    places_.emplace(key, entries_.begin());
    bytes_ += bytes;
  }

  size_t size() const { return entries_.size(); }
  size_t bytes() const { return bytes_; }

 private:
  struct Entry {
    std::string key;
    Value value;
    size_t bytes;
  };

  const size_t max_bytes_;
  size_t bytes_ = 0;          // sum over the entries; at most max_bytes_
  std::list<Entry> entries_;  // the most recently used first
  std::unordered_map<std::string, typename std::list<Entry>::iterator> places_;
};

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_TEXT_GRAMMAR_RECENTLY_USED_H_
