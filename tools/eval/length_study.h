// Error of attention from fewer entries as a text grows, and number of clusters of its keys
// (SubGen, arXiv 2402.06082, theorem 1), in a head of each of the first layers.
#ifndef HYDRANT_TOOLS_EVAL_LENGTH_STUDY_H_
#define HYDRANT_TOOLS_EVAL_LENGTH_STUDY_H_

#include <functional>
#include <nlohmann/json.hpp>
#include <span>
#include <string>

#include "tools/eval/anatomy.h"

namespace hydrant::eval {

inline constexpr int kLongestStudy = 4016;  // maximum number of tokens used

// Null if the text is shorter than the smallest length.
nlohmann::json StudyLengths(std::span<const TokenId> text, PlainForward* forward,
                            const std::function<void(const std::string&)>& progress);

}  // namespace hydrant::eval

#endif  // HYDRANT_TOOLS_EVAL_LENGTH_STUDY_H_
