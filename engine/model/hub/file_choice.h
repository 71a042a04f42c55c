// Chooses the files of a repository that serving a model needs. Pure functions of a listing.
#ifndef HYDRANT_ENGINE_MODEL_HUB_FILE_CHOICE_H_
#define HYDRANT_ENGINE_MODEL_HUB_FILE_CHOICE_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/model/hub/repo_listing.h"

namespace hydrant::hub {

struct FileChoice {
  std::vector<RepoFile> files;
  std::string served;  // the file to open, or "" for the folder
  std::string note;    // one line about alternatives; "" if there were none
};

// `wanted` is a file's name, or the end of a GGUF file's name before ".gguf", such as its
// quantisation ("Q4_K_M", in any case), or "". If the file is one part of a GGUF model, the other
// parts are included. For "" the choice is, in this order:
//
// - safetensors beside a config.json, at the top of the repository, in one file or by an index,
//   with the files that describe the model and its tokenizer; never pickled weights or other
//   formats;
// - the only GGUF model; of several, the first quantisation present in Q4_K_M, Q8_0, Q6_K, Q5_K_M,
//   Q4_0, Q4_1, BF16, F16, F32.
//
// NotFound lists the alternatives, nearest names first.
absl::StatusOr<FileChoice> ChooseFiles(const std::vector<RepoFile>& listing,
                                       const std::string& wanted);

// Checks a snapshot without a stored listing, by the files in it: FailedPrecondition if they refer
// to missing files. `index`: the text of model.safetensors.index.json, "" if there is none.
absl::Status CheckNothingMissing(const FileChoice& choice, const std::string& index);

}  // namespace hydrant::hub

#endif  // HYDRANT_ENGINE_MODEL_HUB_FILE_CHOICE_H_
