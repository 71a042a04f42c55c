// Parses names of GGUF files: parts of a split model, quantisation. Stateless.
#ifndef HYDRANT_ENGINE_MODEL_HUB_GGUF_NAMES_H_
#define HYDRANT_ENGINE_MODEL_HUB_GGUF_NAMES_H_

#include <string>
#include <string_view>
#include <vector>

#include "engine/model/hub/repo_listing.h"

namespace hydrant::hub {

// A model in one file or in several, "NAME-00001-of-00003.gguf".
struct GgufModel {
  std::string stem;             // its path without part and ".gguf"
  int num_parts = 1;            // according to its name
  std::vector<RepoFile> parts;  // the listed parts, in order

  bool IsWhole() const { return parts.size() == static_cast<size_t>(num_parts); }
};

// Language models only; skips "mmproj..." and "imatrix..." files.
std::vector<GgufModel> GgufModels(const std::vector<RepoFile>& listing);

// Whether the stem ends with `tag` as a whole word: "model.Q4_K_M" and "Q4_K_M/model" with
// "q4_k_m", in any case.
bool HasTag(const GgufModel& model, std::string_view tag);

}  // namespace hydrant::hub

#endif  // HYDRANT_ENGINE_MODEL_HUB_GGUF_NAMES_H_
