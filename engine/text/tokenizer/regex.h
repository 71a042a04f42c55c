// The regular expressions of tokenizer files, run by PCRE2 (JIT) with the meaning Oniguruma gives
// them: Unicode classes, White_Space for \s, ^ and $ at every line. A construct the two engines
// read differently is refused by name when the pattern is compiled. Immutable, thread safe.
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

  // InvalidArgument: not a regular expression. Unimplemented: a construct outside the common
  // ground.
  static absl::StatusOr<std::unique_ptr<Regex>> Compile(std::string_view pattern);
  ~Regex();

  // Appends all matches, left to right, not overlapping; empty ones too, but none directly behind a
  // match. ResourceExhausted where the text drives the matcher beyond its limits; never a silent
  // stop. REQUIRES: `text` is valid UTF-8.
  absl::Status FindAll(std::string_view text, std::vector<Match>* matches) const;

 private:
  struct Impl;
  explicit Regex(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// The pattern in PCRE2's words; separate for its tests.
absl::StatusOr<std::string> TranslateRegex(std::string_view pattern);

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_TEXT_TOKENIZER_REGEX_H_
