// The grammar library's EBNF, written so that it is read in one way: its own \x takes as many
// hexadecimal digits as follow. Pure functions, thread safe.
#ifndef HYDRANT_ENGINE_GRAMMAR_EBNF_TEXT_H_
#define HYDRANT_ENGINE_GRAMMAR_EBNF_TEXT_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "engine/grammar/code_point_set.h"

namespace hydrant {

// How often something may stand in a row.
struct Repetition {
  int32_t least = 0;
  int32_t most = -1;  // -1: without end
};
// The library counts in 32 bits.
inline constexpr int64_t kMostRepetitions = 1'000'000'000;

// "text", in quotes. REQUIRES: UTF-8.
std::string EbnfString(std::string_view text);
// [a-z]. REQUIRES: not empty.
std::string EbnfClass(const CodePointSet& set);
// {2,3}, to stand behind an element; "" for once. REQUIRES: most is not 0.
std::string EbnfRepetition(const Repetition& repetition);

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_GRAMMAR_EBNF_TEXT_H_
