// Which files of a repository serving a model needs. Pure functions of a listing.
#ifndef HYDRANT_ENGINE_MODEL_HUB_FILE_CHOICE_H_
#define HYDRANT_ENGINE_MODEL_HUB_FILE_CHOICE_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/model/hub/repo_listing.h"

namespace hydrant::hub {

struct FileChoice {
  std::vector<RepoFile> files;
  std::string served;  // what a server opens: a file's name, or "" for the folder
  std::string note;    // a line about what else there was; "" where there was no choice
};

// `wanted` is a file's name; or what the name of a GGUF file ends with before ".gguf", as its
// quantisation ("Q4_K_M", in any case); or "". A file that is one part of a GGUF model brings the
// others. For "" it is, in this order:
//
// - safetensors beside a config.json, at the top of the repository, in one file or by an index,
// with
//   what describes the model and its tokenizer; never pickled weights or those of other formats;
// - the one GGUF model; of several that with the first quantisation that is there of Q4_K_M, Q8_0,
//   Q6_K, Q5_K_M, Q4_0, Q4_1, BF16, F16, F32.
//
// NotFound lists what there is to choose from, the nearest names first.
absl::StatusOr<FileChoice> ChooseFiles(const std::vector<RepoFile>& listing,
                                       const std::string& wanted);

// The same of a snapshot of which no list is there, by the files in it: FailedPrecondition where
// they tell of others that are missing. `index`: the text of model.safetensors.index.json, "" where
// there is none.
absl::Status CheckNothingMissing(const FileChoice& choice, const std::string& index);

}  // namespace hydrant::hub

#endif  // HYDRANT_ENGINE_MODEL_HUB_FILE_CHOICE_H_
