// Writes the EBNF of the grammar library, in forms that have one meaning: the library's \x escape
// takes as many hexadecimal digits as follow, so \u and \U are used. Pure functions, thread safe.
#ifndef HYDRANT_ENGINE_TEXT_GRAMMAR_EBNF_TEXT_H_
#define HYDRANT_ENGINE_TEXT_GRAMMAR_EBNF_TEXT_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "engine/text/grammar/code_point_set.h"

namespace hydrant {

// The allowed number of consecutive occurrences of an element.
struct Repetition {
  int32_t least = 0;
  int32_t most = -1;  // -1: no upper limit
};
// The library counts repetitions in 32 bits.
inline constexpr int64_t kMaxRepetitions = 1'000'000'000;

// `text` in quotes, escaped. REQUIRES: valid UTF-8.
std::string EbnfString(std::string_view text);
// A character class, such as [a-z]. REQUIRES: the set is not empty.
std::string EbnfClass(const CodePointSet& set);
// The suffix of a repeated element, such as {2,3}; "" for exactly one. REQUIRES: most is not 0.
std::string EbnfRepetition(const Repetition& repetition);

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_TEXT_GRAMMAR_EBNF_TEXT_H_
