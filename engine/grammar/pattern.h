// Regular expressions in ECMAScript's syntax as trees. Pure functions, thread safe.
#ifndef HYDRANT_ENGINE_GRAMMAR_PATTERN_H_
#define HYDRANT_ENGINE_GRAMMAR_PATTERN_H_

#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/grammar/code_point_set.h"
#include "engine/grammar/ebnf_text.h"

namespace hydrant {

struct Pattern {
  enum class Kind { kCharacter, kSequence, kEither, kRepeat, kBegin, kEnd };
  Kind kind = Kind::kSequence;
  CodePointSet set = {};  // kCharacter: one of these
  std::vector<Pattern> parts =
      {};  // of a sequence, any number; of kEither, at least one; kRepeat's
  Repetition repetition = {};
  int at = 0;  // kBegin, kEnd: which character of the text it is, from 1 on
};

// Code points are what it speaks of, and '.' is any. Groups capture nothing, lazy repetitions are
// like others. InvalidArgument names the character, and what is not supported: look-around,
// references to groups, word boundaries, properties of Unicode. REQUIRES: UTF-8
absl::StatusOr<Pattern> ParsePattern(std::string_view text);

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_GRAMMAR_PATTERN_H_
