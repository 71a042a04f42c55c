// Python's int(text) and float(text). Stateless.
#ifndef HYDRANT_ENGINE_TEXT_JINJA_NUMBER_PARSER_H_
#define HYDRANT_ENGINE_TEXT_JINJA_NUMBER_PARSER_H_

#include <cstdint>
#include <optional>
#include <string_view>

namespace hydrant::jinja {

// Accepts surrounding white space, a sign, single underscores between digits, and the prefix of the
// base. nullopt if it is not an integer of 64 bits.
std::optional<int64_t> ParseInt(std::string_view text, int base);
std::optional<double> ParseFloat(std::string_view text);

}  // namespace hydrant::jinja

#endif  // HYDRANT_ENGINE_TEXT_JINJA_NUMBER_PARSER_H_
