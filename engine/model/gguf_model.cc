#include "engine/model/gguf_model.h"

#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "engine/model/gguf_config.h"
#include "engine/model/model_tensors.h"
#include "engine/model/text.h"
#include "kernels/status_macros.h"

namespace hydrant {
namespace {

class GgufModelSource final : public ModelSource {
 public:
  GgufModelSource(std::unique_ptr<GgufFile> file, ModelConfig config, ModelTensors tensors)
      : file_(std::move(file)), config_(std::move(config)), tensors_(std::move(tensors)) {}

  const ModelConfig& config() const override { return config_; }
  absl::StatusOr<TensorView> Embedding() const override { return tensors_.outer.embedding; }
  absl::StatusOr<TensorView> FinalNorm() const override { return tensors_.outer.final_norm; }
  absl::StatusOr<TensorView> Output() const override { return tensors_.outer.output; }
  absl::StatusOr<LayerTensors> Layer(int layer) const override { return tensors_.Layer(layer); }
  absl::Status CheckUnchanged() const override { return file_->CheckUnchanged(); }
  void ReleasePages() const override { file_->ReleasePages(); }
  const GgufFile* gguf() const override { return file_.get(); }

 private:
  const std::unique_ptr<GgufFile> file_;
  const ModelConfig config_;
  const ModelTensors tensors_;  // views into file_
};

}  // namespace

absl::StatusOr<std::unique_ptr<ModelSource>> MakeGgufSource(std::unique_ptr<GgufFile> file) {
  HYDRANT_ASSIGN_OR_RETURN(GgufConfig config, ReadGgufConfig(*file));
  std::vector<std::string> present;
  for (const auto& [name, view] : file->tensors()) present.push_back(name);
  HYDRANT_RETURN_IF_ERROR(
      CheckNoUnknownTensors(config.model, config.names, present, IsGgufRopeTensor));
  const auto find = [&file](const std::string& name) -> absl::StatusOr<TensorView> {
    const auto it = file->tensors().find(name);
    if (it == file->tensors().end())
      return absl::NotFoundError(absl::StrCat("tensor ", Quoted(name), " is missing"));
    return it->second;
  };
  HYDRANT_ASSIGN_OR_RETURN(ModelTensors tensors, GatherTensors(config.model, config.names, find));
  return std::make_unique<GgufModelSource>(std::move(file), std::move(config.model),
                                           std::move(tensors));
}

}  // namespace hydrant
