// Python's `template % values` on strings: %s %r %d %i %f %e %g %x %o %c %% with flags, width and
// precision, by position or by name (%(name)s). Stateless.
#ifndef HYDRANT_ENGINE_TEXT_JINJA_PERCENT_FORMAT_H_
#define HYDRANT_ENGINE_TEXT_JINJA_PERCENT_FORMAT_H_

#include <string_view>

#include "absl/status/statusor.h"
#include "engine/text/jinja/budget.h"
#include "engine/text/jinja/value.h"

namespace hydrant::jinja {

absl::StatusOr<Value> PercentFormat(Budget* budget, std::string_view format, const Value& values);

// Escapes `<`, `>`, `&`, `'` and `"` for HTML, as MarkupSafe does.
absl::StatusOr<Value> EscapeHtml(Budget* budget, std::string_view text);

}  // namespace hydrant::jinja

#endif  // HYDRANT_ENGINE_TEXT_JINJA_PERCENT_FORMAT_H_
