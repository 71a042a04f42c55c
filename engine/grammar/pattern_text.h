// Patterns in the two languages that the grammar library reads. Pure functions, thread safe.
#ifndef HYDRANT_ENGINE_GRAMMAR_PATTERN_TEXT_H_
#define HYDRANT_ENGINE_GRAMMAR_PATTERN_TEXT_H_

#include <string>

#include "absl/status/status.h"
#include "engine/grammar/pattern.h"

namespace hydrant {

// Where a match may lie: it is the whole text, or any part of it (RegExp.test; JSON Schema's
// "pattern").
enum class PatternMatch { kWhole, kPart };

// The pattern of whole texts that match so, without '^' and '$'. InvalidArgument where one of these
// is neither at the beginning nor at the end.
absl::Status ResolveAnchors(PatternMatch match, Pattern* pattern);

// What is left of it in texts of these code points. False: nothing is.
bool Restrict(const CodePointSet& to, Pattern* pattern);

// REQUIRES, for both: it has no '^' and '$'.
std::string EbnfOf(const Pattern& pattern);   // what stands behind "root ::="
std::string RegexOf(const Pattern& pattern);  // in ASCII

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_GRAMMAR_PATTERN_TEXT_H_
