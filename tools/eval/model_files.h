// The files that hydrant-eval's commands read: texts, a model and its tokenizer. Errors end the
// program (Fail).
#ifndef HYDRANT_TOOLS_EVAL_MODEL_FILES_H_
#define HYDRANT_TOOLS_EVAL_MODEL_FILES_H_

#include <memory>
#include <string>
#include <vector>

#include "engine/model/model_source.h"
#include "engine/text/tokenizer/tokenizer.h"
#include "kernels/weight.h"

namespace hydrant::eval {

// [paths]
std::vector<std::string> ReadTexts(const std::vector<std::string>& paths);

// The local path of a GGUF file, a folder, or a model of the hub, which is fetched.
std::string PathOfModel(const std::string& model);

struct ModelFiles {
  std::shared_ptr<const ModelSource> source;
  std::unique_ptr<Tokenizer> tokenizer;
};
ModelFiles OpenModelFiles(const std::string& path);

}  // namespace hydrant::eval

#endif  // HYDRANT_TOOLS_EVAL_MODEL_FILES_H_
