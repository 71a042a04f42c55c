#include "engine/model/dummy_source.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <mutex>
#include <new>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "engine/model/llama_tensors.h"
#include "engine/model/text.h"
#include "kernels/float16.h"

namespace hydrant {
namespace {

// The output function of SplitMix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number
// Generators, 2014), applied to a counter.
uint64_t Mix(uint64_t x) {
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
  x = (x ^ x >> 27) * 0x94d049bb133111ebu;
  return x ^ x >> 31;
}

constexpr uint64_t kGolden = 0x9e3779b97f4a7c15u;

uint64_t StreamKey(uint64_t seed, std::string_view tensor) {
  uint64_t key = Mix(seed + kGolden);
  for (const char c : tensor) key = Mix((key ^ static_cast<uint8_t>(c)) + kGolden);
  return key;
}

uint32_t SumOfParts(uint64_t bits) {
  return static_cast<uint32_t>((bits & 0xffff) + (bits >> 16 & 0xffff) + (bits >> 32 & 0xffff) +
                               (bits >> 48));
}

// A tensor and the bytes behind it.
struct Owned {
  TensorView view;
  std::unique_ptr<uint8_t[]> bytes;
};

class DummySource final : public ModelSource {
 public:
  DummySource(HfConfig config, std::string folder, uint64_t seed)
      : config_(std::move(config)),
        folder_(std::move(folder)),
        seed_(seed),
        outer_(ExpectedOuterTensors(config_.model, HuggingFaceLlamaNames())),
        layers_(config_.model.num_layers) {}

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
    LayerSlot& slot = layers_[layer];
    const std::lock_guard lock(slot.mutex);
    const std::vector<ExpectedTensor> expected =
        ExpectedLayerTensors(config_.model, HuggingFaceLlamaNames(), layer);
    slot.tensors.resize(expected.size());
    for (size_t i = 0; i < expected.size(); ++i) {
      const absl::StatusOr<TensorView> view = MakeOnce(expected[i], &slot.tensors[i]);
      if (!view.ok()) return view.status();
      result.*expected[i].role = *view;
    }
    return result;
  }

 private:
  struct LayerSlot {
    std::mutex mutex;
    std::vector<Owned>
        tensors;  // guarded by mutex; filled once, in the order of ExpectedLayerTensors()
  };

  absl::StatusOr<TensorView> Outer(size_t index) const {
    const std::lock_guard lock(outer_mutex_);
    return MakeOnce(outer_[index], &outer_tensors_[index]);
  }

  absl::StatusOr<TensorView> MakeOnce(const ExpectedTensor& tensor, Owned* owned) const {
    if (owned->bytes != nullptr) return owned->view;
    const bool is_norm = tensor.shape.size() == 1;
    TensorView view{is_norm ? DType::kF32 : config_.weight_dtype, tensor.shape, {}};
    const size_t size = BytesOf(view.dtype, view.NumElements());
    owned->bytes.reset(new (std::nothrow) uint8_t[size]);
    if (owned->bytes == nullptr) {
      return absl::ResourceExhaustedError(
          absl::StrCat("dummy tensor ", Quoted(tensor.name), ": no memory for ", size, " bytes"));
    }
    view.bytes = {owned->bytes.get(), size};
    Fill(tensor.name, is_norm, view, owned->bytes.get());
    owned->view = std::move(view);
    return owned->view;
  }

  void Fill(const std::string& name, bool is_norm, const TensorView& view, uint8_t* out) const {
    const uint64_t count = view.NumElements();
    std::array<float, 1024> chunk;
    chunk.fill(1.0f);  // what a norm is
    for (uint64_t begin = 0; begin < count; begin += chunk.size()) {
      const std::span<float> values(chunk.data(), std::min<uint64_t>(chunk.size(), count - begin));
      if (!is_norm) {
        DummyNormals(seed_, name, begin, values);
        for (float& value : values) value *= static_cast<float>(config_.initializer_range);
      }
      if (view.dtype == DType::kF32) {
        std::memcpy(out + begin * sizeof(float), values.data(), values.size_bytes());
        continue;
      }
      for (size_t i = 0; i < values.size(); ++i) {
        const uint16_t bits = FloatToBF16(values[i]);
        std::memcpy(out + (begin + i) * sizeof bits, &bits, sizeof bits);
      }
    }
  }

  const HfConfig config_;
  const std::string folder_;
  const uint64_t seed_;
  const std::vector<ExpectedTensor> outer_;
  mutable std::mutex outer_mutex_;
  mutable std::array<Owned, 3> outer_tensors_;  // guarded by outer_mutex_
  mutable std::vector<LayerSlot> layers_;
};

uint64_t TotalBytes(const HfConfig& config) {
  const ModelConfig& model = config.model;
  const auto bytes_of = [&](const std::vector<ExpectedTensor>& tensors) {
    uint64_t sum = 0;
    for (const ExpectedTensor& tensor : tensors) {
      uint64_t elements = 1;
      for (const int64_t dim : tensor.shape) elements *= static_cast<uint64_t>(dim);
      sum += BytesOf(config.weight_dtype, elements);
    }
    return sum;
  };
  return bytes_of(ExpectedOuterTensors(model, HuggingFaceLlamaNames())) +
         model.num_layers * bytes_of(ExpectedLayerTensors(model, HuggingFaceLlamaNames(), 0));
}

}  // namespace

void DummyNormals(uint64_t seed, std::string_view tensor, uint64_t begin, std::span<float> out) {
  const uint64_t key = StreamKey(seed, tensor);
  for (size_t i = 0; i < out.size(); ++i) {
    const uint64_t counter = key + (begin + i) * 3 * kGolden;
    const uint32_t sum = SumOfParts(Mix(counter)) + SumOfParts(Mix(counter + kGolden)) +
                         SumOfParts(Mix(counter + 2 * kGolden));
    // Twelve uniforms on {0..65535} have the mean 12 * 65535 / 2 and, but for one part in 2^32, the
    // variance 2^32.
    out[i] = static_cast<float>(static_cast<int32_t>(sum) - 6 * 65535) * (1.0f / 65536.0f);
  }
}

absl::StatusOr<std::unique_ptr<ModelSource>> MakeDummySource(HfConfig config, std::string folder,
                                                             uint64_t seed) {
  const uint64_t wanted = TotalBytes(config);
  const uint64_t present =
      static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  if (wanted > present) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "dummy weights need ", wanted, " bytes, the machine has ", present, " bytes of memory"));
  }
  return std::make_unique<DummySource>(std::move(config), std::move(folder), seed);
}

}  // namespace hydrant
