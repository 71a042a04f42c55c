// JSON Schema's "format" as patterns. Pure functions, thread safe.
#ifndef HYDRANT_ENGINE_TEXT_GRAMMAR_STRING_FORMAT_H_
#define HYDRANT_ENGINE_TEXT_GRAMMAR_STRING_FORMAT_H_

#include <optional>
#include <string>
#include <string_view>

namespace hydrant {

// A pattern that matches only valid texts of this format, but not all of them: addresses have no
// quotes, comments or brackets, times have no leap seconds. nullopt: the format is unknown, so it
// is an annotation without effect (JSON Schema 2020-12, section 7.2.1).
std::optional<std::string> PatternOfFormat(std::string_view format);

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_TEXT_GRAMMAR_STRING_FORMAT_H_
