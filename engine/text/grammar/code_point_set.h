// Sets of Unicode code points, and the values of hexadecimal digits. Plain data; pure functions,
// thread safe.
#ifndef HYDRANT_ENGINE_TEXT_GRAMMAR_CODE_POINT_SET_H_
#define HYDRANT_ENGINE_TEXT_GRAMMAR_CODE_POINT_SET_H_

#include <optional>
#include <vector>

namespace hydrant {

inline constexpr char32_t kLastCodePoint = 0x10FFFF;

struct CodePointRange {
  char32_t first = 0, last = 0;  // both inclusive
  bool operator==(const CodePointRange&) const = default;
};

// Ranges in ascending order, with at least one code point between two ranges.
using CodePointSet = std::vector<CodePointRange>;

// The union of ranges in any order; they may overlap. REQUIRES: first <= last in each range.
CodePointSet ToCodePointSet(std::vector<CodePointRange> ranges);
CodePointSet Complement(const CodePointSet& set);
CodePointSet Intersection(const CodePointSet& a, const CodePointSet& b);

// The value of a hexadecimal digit; nullopt if `c` is not one.
std::optional<int> HexDigit(char32_t c);

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_TEXT_GRAMMAR_CODE_POINT_SET_H_
