#include "engine/model/dummy_source.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "engine/model/hf_config.h"
#include "engine/model/model_tensors.h"
#include "kernels/normals.h"
#include "kernels/random.h"

namespace hydrant {
namespace {

uint64_t StreamKey(uint64_t seed, std::string_view tensor) {
  uint64_t key = MixBits(seed + kRandomStep);
  for (const char c : tensor) key = MixBits((key ^ static_cast<uint8_t>(c)) + kRandomStep);
  return key;
}

int LongestNorm(const ModelConfig& config) {
  return std::max({config.hidden_size, config.QDim(), config.KvDim()});
}

int LongestBias(const ModelConfig& config) {
  const int experts = config.experts.has_value() ? config.experts->count : 0;
  return std::max({config.hidden_size, config.intermediate_size, 3 * config.QDim(), experts});
}

class DummySource final : public ModelSource {
 public:
  DummySource(HfConfig config, std::string folder, uint64_t seed)
      : config_(std::move(config)),
        folder_(std::move(folder)),
        seed_(seed),
        ones_(LongestNorm(config_.model), 1.0f),
        zeros_(LongestBias(config_.model), 0.0f) {}

  const ModelConfig& config() const override { return config_.model; }
  std::string folder() const override { return folder_; }
  absl::StatusOr<TensorView> Embedding() const override { return Outer(&OuterTensors::embedding); }
  absl::StatusOr<TensorView> Positions() const override {
    const TensorView stored = Outer(&OuterTensors::positions);
    if (!stored.Exists()) return stored;
    TensorView positions = stored;  // rows of the position embedding start at its first row
    positions.shape[0] = config_.model.max_context;
    return positions;
  }
  absl::StatusOr<TensorView> FinalNorm() const override { return Outer(&OuterTensors::final_norm); }
  absl::StatusOr<TensorView> FinalNormBias() const override {
    return Outer(&OuterTensors::final_norm_bias);
  }
  absl::StatusOr<TensorView> Output() const override {
    return Outer(config_.model.tied_embeddings ? &OuterTensors::embedding : &OuterTensors::output);
  }

  absl::StatusOr<LayerTensors> Layer(int layer) const override {
    if (layer < 0 || layer >= config_.model.num_layers) {
      return absl::OutOfRangeError(absl::StrCat("layer is ", layer, ", the model has layers 0 to ",
                                                config_.model.num_layers - 1));
    }
    LayerTensors result;
    for (const ExpectedTensor& tensor : ExpectedLayerTensors(config_.model, Names(), layer)) {
      tensor.In(&result) = View(tensor);
    }
    return result;
  }

 private:
  const TensorNames& Names() const { return HuggingFaceNames(config_.model); }

  TensorView Outer(TensorView OuterTensors::*role) const {
    for (const ExpectedTensor& tensor : ExpectedOuterTensors(config_.model, Names())) {
      if (tensor.outer == role) return View(tensor);
    }
    return {};
  }

  TensorView View(const ExpectedTensor& tensor) const {
    if (tensor.shape.size() == 1) {
      const std::vector<float>& values = tensor.IsBias() ? zeros_ : ones_;
      return {DType::kF32,
              tensor.shape,
              {reinterpret_cast<const uint8_t*>(values.data()), tensor.shape[0] * sizeof(float)},
              std::nullopt};
    }
    const auto stddev = static_cast<float>(config_.initializer_range);
    // The parts of a fused tensor have different distributions.
    const std::string name =
        tensor.first_row == 0 ? tensor.name : absl::StrCat(tensor.name, "[", tensor.first_row, "]");
    return {config_.weight_dtype, tensor.shape, {}, NormalStream{StreamKey(seed_, name), stddev}};
  }

  const HfConfig config_;
  const std::string folder_;
  const uint64_t seed_;
  const std::vector<float> ones_;   // value of every norm
  const std::vector<float> zeros_;  // value of every bias
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
