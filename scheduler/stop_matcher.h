// Finds the first of several stop strings in a text that arrives in pieces, and holds back only
// text that may still become a match. The match that ends first wins (the longest of several),
// independent of the pieces. One Knuth-Morris-Pratt automaton per string: O(1) amortised per byte
// and string. Not thread safe; one per stream.
#ifndef HYDRANT_SCHEDULER_STOP_MATCHER_H_
#define HYDRANT_SCHEDULER_STOP_MATCHER_H_

#include <cstddef>
#include <string>
#include <vector>

namespace hydrant {

class StopMatcher {
 public:
  // REQUIRES: no empty string
  StopMatcher(const std::vector<std::string>& stops, bool include_in_output);

  // Text that is safe to emit now; empty after a match.
  std::string Push(const std::string& text);
  // The text held back, at the end of the stream.
  std::string Flush();

  bool matched() const { return matched_ >= 0; }
  // REQUIRES: matched()
  const std::string& matched_stop() const { return automata_[matched_].stop; }

 private:
  struct Automaton {
    std::string stop;
    std::vector<size_t> border;  // border[i]: longest proper border of the first i + 1 bytes
    size_t state = 0;            // bytes of `stop` that end the text so far
    bool Advance(char byte);     // true: the stop string is complete
  };
  void Match(int index, size_t end);

  std::vector<Automaton> automata_;
  bool include_;
  int matched_ = -1;
  std::string held_;
};

}  // namespace hydrant

#endif  // HYDRANT_SCHEDULER_STOP_MATCHER_H_
