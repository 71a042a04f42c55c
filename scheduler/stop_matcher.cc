#include "scheduler/stop_matcher.h"

#include <algorithm>
#include <utility>

namespace hydrant {

StopMatcher::StopMatcher(const std::vector<std::string>& stops, bool include_in_output)
    : include_(include_in_output) {
  for (const std::string& stop : stops) {
    Automaton automaton{stop, std::vector<size_t>(stop.size(), 0)};
    size_t length = 0;
    for (size_t i = 1; i < stop.size(); ++i) {
      while (length > 0 && stop[i] != stop[length]) length = automaton.border[length - 1];
      if (stop[i] == stop[length]) ++length;
      automaton.border[i] = length;
    }
    automata_.push_back(std::move(automaton));
  }
}

bool StopMatcher::Automaton::Advance(char byte) {
  while (state > 0 && stop[state] != byte) state = border[state - 1];
  if (stop[state] == byte) ++state;
  return state == stop.size();
}

std::string StopMatcher::Push(const std::string& text) {
  if (matched()) return "";
  if (automata_.empty()) return text;
  size_t end = held_.size();
  held_ += text;
  for (; end < held_.size(); ++end) {
    const char byte = held_[end];
    for (size_t i = 0; i < automata_.size(); ++i) {
      if (automata_[i].Advance(byte)) Match(static_cast<int>(i), end + 1);
    }
    if (matched()) return std::exchange(held_, "");
  }
  size_t hold = 0;
  for (const Automaton& automaton : automata_) hold = std::max(hold, automaton.state);
  std::string safe = held_.substr(0, held_.size() - hold);
  held_.erase(0, safe.size());
  return safe;
}

// Several strings may end at the same byte: the longest began first and wins.
void StopMatcher::Match(int index, size_t end) {
  const size_t length = automata_[index].stop.size();
  if (matched() && automata_[matched_].stop.size() >= length) return;
  const bool first = !matched();
  matched_ = index;
  if (include_ && first) held_.resize(end);
  if (!include_) held_.resize(end - length);
}

std::string StopMatcher::Flush() { return matched() ? "" : std::exchange(held_, ""); }

}  // namespace hydrant
