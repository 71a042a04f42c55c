// The regular expressions of tokenizer files, run by PCRE2 (JIT) with Oniguruma's semantics:
// Unicode classes, White_Space for \s, ^ and $ at every line. Constructs that the two engines
// interpret differently are refused by name at compilation. Immutable, thread safe.
#ifndef HYDRANT_ENGINE_TEXT_TOKENIZER_REGEX_H_
#define HYDRANT_ENGINE_TEXT_TOKENIZER_REGEX_H_

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace hydrant {

class Regex {
 public:
  struct Match {
    size_t begin, end;  // bytes
  };

  // InvalidArgument: not a regular expression. Unimplemented: a construct on which the engines
  // differ.
  static absl::StatusOr<std::unique_ptr<Regex>> Compile(std::string_view pattern);
  ~Regex();

  // Appends all matches, left to right, not overlapping; empty ones too, but none directly after a
  // match. ResourceExhausted if the text exceeds the matcher's limits; it never stops silently.
  // REQUIRES: `text` is valid UTF-8.
  absl::Status FindAll(std::string_view text, std::vector<Match>* matches) const;

 private:
  struct Impl;
  explicit Regex(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// The pattern in PCRE2's syntax; exposed for tests.
absl::StatusOr<std::string> TranslateRegex(std::string_view pattern);

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_TEXT_TOKENIZER_REGEX_H_
