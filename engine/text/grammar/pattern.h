// Regular expressions in ECMAScript's syntax as trees. Pure functions, thread safe.
#ifndef HYDRANT_ENGINE_TEXT_GRAMMAR_PATTERN_H_
#define HYDRANT_ENGINE_TEXT_GRAMMAR_PATTERN_H_

#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/text/grammar/code_point_set.h"
#include "engine/text/grammar/ebnf_text.h"

namespace hydrant {

struct Pattern {
  enum class Kind { kCharacter, kSequence, kEither, kRepeat, kBegin, kEnd };
  Kind kind = Kind::kSequence;
  CodePointSet set = {};            // kCharacter: any one of these
  std::vector<Pattern> parts = {};  // kSequence: any number; kEither: at least one; kRepeat: one
  Repetition repetition = {};
  int at = 0;  // kBegin, kEnd: the character's position in the pattern, from 1 on
};

// Parses a pattern over code points. '.' matches every code point, groups capture nothing, and a
// lazy repetition matches the same texts as a greedy one. InvalidArgument names the position and
// the unsupported feature: look-around, references to groups, word boundaries, Unicode properties.
// REQUIRES: valid UTF-8.
absl::StatusOr<Pattern> ParsePattern(std::string_view text);

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_TEXT_GRAMMAR_PATTERN_H_
