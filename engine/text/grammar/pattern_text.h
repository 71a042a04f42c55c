// Writes patterns in the two languages that the grammar library reads. Pure functions, thread safe.
#ifndef HYDRANT_ENGINE_TEXT_GRAMMAR_PATTERN_TEXT_H_
#define HYDRANT_ENGINE_TEXT_GRAMMAR_PATTERN_TEXT_H_

#include <string>

#include "absl/status/status.h"
#include "engine/text/grammar/pattern.h"

namespace hydrant {

// The part of a text that has to match: the whole text, or any part of it (RegExp.test; JSON
// Schema's "pattern").
enum class PatternMatch { kWhole, kPart };

// Changes the pattern into one that has no '^' and '$' and matches whole texts. InvalidArgument: a
// '^' is not at the beginning, or a '$' is not at the end.
absl::Status ResolveAnchors(PatternMatch match, Pattern* pattern);

// Removes the texts that have a code point outside of `to`. False: no text is left.
bool Restrict(const CodePointSet& to, Pattern* pattern);

// REQUIRES, for both: the pattern has no '^' and '$'.
std::string EbnfOf(const Pattern& pattern);   // the text after "root ::="
std::string RegexOf(const Pattern& pattern);  // in ASCII

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_TEXT_GRAMMAR_PATTERN_TEXT_H_
