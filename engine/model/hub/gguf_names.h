// GGUF files by their names: the parts of a split model, and what it was quantised to. Stateless.
#ifndef HYDRANT_ENGINE_MODEL_HUB_GGUF_NAMES_H_
#define HYDRANT_ENGINE_MODEL_HUB_GGUF_NAMES_H_

#include <string>
#include <string_view>
#include <vector>

#include "engine/model/hub/repo_listing.h"

namespace hydrant::hub {

// A model of one file or of several, "NAME-00001-of-00003.gguf".
struct GgufModel {
  std::string stem;             // its path without part and ".gguf"
  int num_parts = 1;            // that its name tells of
  std::vector<RepoFile> parts;  // those that are listed, in order

  bool IsWhole() const { return parts.size() == static_cast<size_t>(num_parts); }
};

// Language models alone: "mmproj..." and "imatrix..." files are none.
std::vector<GgufModel> GgufModels(const std::vector<RepoFile>& listing);

// Whether the stem ends with `tag` as a word of its own: "model.Q4_K_M" and "Q4_K_M/model" with
// "q4_k_m", in any case.
bool HasTag(const GgufModel& model, std::string_view tag);

}  // namespace hydrant::hub

#endif  // HYDRANT_ENGINE_MODEL_HUB_GGUF_NAMES_H_
