// Whether two schemas may describe the same value, for "oneOf". For .cc files only: it pulls in the
// JSON library. Pure functions, thread safe.
#ifndef HYDRANT_ENGINE_GRAMMAR_SCHEMA_OVERLAP_H_
#define HYDRANT_ENGINE_GRAMMAR_SCHEMA_OVERLAP_H_

#include <cstddef>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

namespace hydrant {

// Two of a list of schemas that one value may be of, by their places in it; none: their types
// differ, or their constants, or those of a property that both require. `root`: where references
// are looked up.
std::optional<std::pair<size_t, size_t>> OverlappingPair(const nlohmann::ordered_json& schemas,
                                                         const nlohmann::ordered_json& root);

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_GRAMMAR_SCHEMA_OVERLAP_H_
