// Sets of Unicode code points, and what is read of their characters. Plain data; pure functions,
// thread safe.
#ifndef HYDRANT_ENGINE_GRAMMAR_CODE_POINT_SET_H_
#define HYDRANT_ENGINE_GRAMMAR_CODE_POINT_SET_H_

#include <optional>
#include <vector>

namespace hydrant {

inline constexpr char32_t kLastCodePoint = 0x10FFFF;

struct CodePointRange {
  char32_t first = 0, last = 0;  // both included
  bool operator==(const CodePointRange&) const = default;
};

// Ascending, and at least one code point apart.
using CodePointSet = std::vector<CodePointRange>;

// Of ranges in any order, which may overlap. REQUIRES: first <= last of each.
CodePointSet ToCodePointSet(std::vector<CodePointRange> ranges);
CodePointSet Complement(const CodePointSet& set);
CodePointSet Intersection(const CodePointSet& a, const CodePointSet& b);

// None: it is no hexadecimal digit.
std::optional<int> HexDigit(char32_t c);

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_GRAMMAR_CODE_POINT_SET_H_
