#include "engine/text/grammar/code_point_set.h"

#include <algorithm>
#include <utility>

namespace hydrant {

CodePointSet ToCodePointSet(std::vector<CodePointRange> ranges) {
  std::ranges::sort(ranges, {}, &CodePointRange::first);
  CodePointSet set;
  for (const CodePointRange& range : ranges) {
    if (!set.empty() && range.first <= set.back().last + 1) {
      set.back().last = std::max(set.back().last, range.last);
    } else {
      set.push_back(range);
    }
  }
  return set;
}

CodePointSet Complement(const CodePointSet& set) {
  CodePointSet rest;
  char32_t next = 0;
  for (const CodePointRange& range : set) {
    if (range.first > next) rest.push_back({next, range.first - 1});
    next = range.last + 1;
  }
  if (next <= kLastCodePoint) rest.push_back({next, kLastCodePoint});
  return rest;
}

CodePointSet Intersection(const CodePointSet& a, const CodePointSet& b) {
  CodePointSet rest = Complement(a);
  const CodePointSet other = Complement(b);
  rest.insert(rest.end(), other.begin(), other.end());
  return Complement(ToCodePointSet(std::move(rest)));
}

std::optional<int> HexDigit(char32_t c) {
  if (c >= '0' && c <= '9') return static_cast<int>(c - '0');
  const char32_t lower = c | 0x20;
  if (lower < 'a' || lower > 'f') return std::nullopt;
  return static_cast<int>(lower - 'a') + 10;
}

}  // namespace hydrant
