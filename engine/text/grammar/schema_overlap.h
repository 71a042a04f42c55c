// Whether two schemas may describe the same value, for "oneOf". For .cc files only: it pulls in the
// JSON library. Pure functions, thread safe.
#ifndef HYDRANT_ENGINE_TEXT_GRAMMAR_SCHEMA_OVERLAP_H_
#define HYDRANT_ENGINE_TEXT_GRAMMAR_SCHEMA_OVERLAP_H_

#include <cstddef>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

namespace hydrant {

// Indices of two schemas of a list that one value may match; nullopt if there is no such pair. Two
// schemas exclude each other if their types or constants differ, or if a property that both require
// has schemas that exclude each other. `root`: the document that references point into.
std::optional<std::pair<size_t, size_t>> OverlappingPair(const nlohmann::ordered_json& schemas,
                                                         const nlohmann::ordered_json& root);

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_TEXT_GRAMMAR_SCHEMA_OVERLAP_H_
