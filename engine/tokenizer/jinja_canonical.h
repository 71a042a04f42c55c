// One spelling for Jinja templates that mean the same: white space control applied (trim_blocks and
// lstrip_blocks on, as transformers sets them), spaces inside tags dropped, string literals and
// attribute access written one way. Nothing is evaluated. Pure function, thread safe.
#ifndef HYDRANT_ENGINE_TOKENIZER_JINJA_CANONICAL_H_
#define HYDRANT_ENGINE_TOKENIZER_JINJA_CANONICAL_H_

#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace hydrant {

// Tags stand between these in the canonical form; everything outside is output text.
inline constexpr char kTagOpen = '\x02', kTagClose = '\x03';

// InvalidArgument where a tag or a string is not closed.
absl::StatusOr<std::string> CanonicalJinja(std::string_view source);

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_TOKENIZER_JINJA_CANONICAL_H_
