#include "engine/model/dummy_source.h"

#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "engine/model/llama_tensors.h"
#include "kernels/normals.h"
#include "kernels/random.h"

namespace hydrant {
namespace {

uint64_t StreamKey(uint64_t seed, std::string_view tensor) {
  uint64_t key = MixBits(seed + kNormalsStep);
  for (const char c : tensor) key = MixBits((key ^ static_cast<uint8_t>(c)) + kNormalsStep);
  return key;
}

class DummySource final : public ModelSource {
 public:
  DummySource(HfConfig config, std::string folder, uint64_t seed)
      : config_(std::move(config)),
        folder_(std::move(folder)),
        seed_(seed),
        ones_(config_.model.hidden_size, 1.0f) {}

  const ModelConfig& config() const override { return config_.model; }
  std::string folder() const override { return folder_; }
  absl::StatusOr<TensorView> Embedding() const override { return Outer(0); }
  absl::StatusOr<TensorView> FinalNorm() const override { return Outer(1); }
  absl::StatusOr<TensorView> Output() const override {
    return Outer(config_.model.tied_embeddings ? 0 : 2);
  }

  absl::StatusOr<LlamaLayerTensors> Layer(int layer) const override {
    if (layer < 0 || layer >= config_.model.num_layers) {
      return absl::OutOfRangeError(absl::StrCat("layer is ", layer, ", the model has layers 0 to ",
                                                config_.model.num_layers - 1));
    }
    LlamaLayerTensors result;
    for (const ExpectedTensor& tensor :
         ExpectedLayerTensors(config_.model, HuggingFaceLlamaNames(), layer)) {
      result.*tensor.role = View(tensor);
    }
    return result;
  }

 private:
  TensorView Outer(size_t index) const {
    return View(ExpectedOuterTensors(config_.model, HuggingFaceLlamaNames())[index]);
  }

  TensorView View(const ExpectedTensor& tensor) const {
    if (tensor.shape.size() == 1) {
      return {DType::kF32,
              tensor.shape,
              {reinterpret_cast<const uint8_t*>(ones_.data()), ones_.size() * sizeof(float)},
              std::nullopt};
    }
    const auto stddev = static_cast<float>(config_.initializer_range);
    return {config_.weight_dtype,
            tensor.shape,
            {},
            NormalStream{StreamKey(seed_, tensor.name), stddev}};
  }

  const HfConfig config_;
  const std::string folder_;
  const uint64_t seed_;
  const std::vector<float> ones_;  // what every norm is
};

}  // namespace

void DummyNormals(uint64_t seed, std::string_view tensor, uint64_t begin, std::span<float> out) {
  const uint64_t key = StreamKey(seed, tensor);
  for (size_t i = 0; i < out.size(); ++i) out[i] = NormalAt(key, begin + i);
}

std::unique_ptr<ModelSource> MakeDummySource(HfConfig config, std::string folder, uint64_t seed) {
  return std::make_unique<DummySource>(std::move(config), std::move(folder), seed);
}

}  // namespace hydrant
