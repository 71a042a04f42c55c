// Which name somebody may have meant. Stateless.
#ifndef HYDRANT_SERVER_NEAREST_NAME_H_
#define HYDRANT_SERVER_NEAREST_NAME_H_

#include <string>
#include <string_view>
#include <vector>

namespace hydrant {

// Of those that `name` is the beginning of, else of all, the first that the fewest insertions,
// deletions and replacements of a character make of it; "" where there are none.
std::string NearestName(std::string_view name, const std::vector<std::string>& known);

}  // namespace hydrant

#endif  // HYDRANT_SERVER_NEAREST_NAME_H_
