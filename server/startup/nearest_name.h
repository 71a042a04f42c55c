// Suggests a known name for a misspelt one. Stateless.
#ifndef HYDRANT_SERVER_STARTUP_NEAREST_NAME_H_
#define HYDRANT_SERVER_STARTUP_NEAREST_NAME_H_

#include <string>
#include <string_view>
#include <vector>

namespace hydrant {

// The first known name with the least edit distance (insertions, deletions and replacements of a
// character) to `name`. If `name` has at least 3 characters, known names that begin with it take
// precedence. "" if `known` is empty.
std::string NearestName(std::string_view name, const std::vector<std::string>& known);

}  // namespace hydrant

#endif  // HYDRANT_SERVER_STARTUP_NEAREST_NAME_H_
