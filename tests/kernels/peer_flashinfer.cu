// Times FlashInfer's paged decode attention (attention/decode.cuh of its headers, Apache-2.0;
// scripts/fetch-flashinfer) without Python, as a peer of device_probe on the same shapes. 32 query
// and 8 KV heads of 128, bf16, randomly placed pages of 16 entries, with one head's entries of a
// page contiguous. Its result is first compared with plain attention on a small batch.
//
//   peer_flashinfer [--json FILE] [--seconds 20]
#include <cuda_runtime.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <flashinfer/attention/decode.cuh>
#include <flashinfer/attention/default_decode_params.cuh>
#include <flashinfer/attention/scheduler.cuh>
#include <flashinfer/attention/variants.cuh>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "tests/measurement_log.h"

namespace hydrant {
namespace {

using BF16 = __nv_bfloat16;
using Params = flashinfer::BatchDecodeParams<BF16, BF16, BF16, int32_t>;
using Variant = flashinfer::DefaultAttention<false, false, false, false>;
constexpr int kHeads = 32, kKvHeads = 8, kGroup = kHeads / kKvHeads, kHeadDim = 128, kPage = 16;
constexpr auto kNoRotation = flashinfer::PosEncodingMode::kNone;
constexpr size_t kWorkspace = size_t{256} << 20, kPlanSpace = size_t{8} << 20;

void Check(cudaError_t error) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "peer_flashinfer: %s\n", cudaGetErrorString(error));
  std::exit(1);
}

double Now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

__global__ void DrawKernel(BF16* out, int64_t count, uint64_t key) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count;
       i += step) {
    uint64_t z = (static_cast<uint64_t>(i) + key) * 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    out[i] = __float2bfloat16(static_cast<float>(z >> 40) * (4.0f / (1 << 24)) - 2.0f);
  }
}

// Device memory, freed by the destructor.
class Arena {
 public:
  Arena() = default;
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;
  ~Arena() {
    for (void* memory : memory_) cudaFree(memory);
  }
  template <typename T>
  T* Allocate(size_t count) {
    void* memory = nullptr;
    Check(cudaMalloc(&memory, count * sizeof(T)));
    memory_.push_back(memory);
    return static_cast<T*>(memory);
  }
  BF16* Draw(int64_t count, uint64_t key) {
    auto* out = Allocate<BF16>(static_cast<size_t>(count));
    DrawKernel<<<1024, 256>>>(out, count, key);
    return out;
  }
  template <typename T>
  T* Upload(const std::vector<T>& values) {
    T* to = Allocate<T>(values.size());
    Check(cudaMemcpy(to, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice));
    return to;
  }

 private:
  std::vector<void*> memory_;
};

// `rows` sequences of `length` entries; cycles through `layers` caches.
class World {
 public:
  World(int rows, int length, int layers) : rows_(rows), length_(length), layers_(layers) {
    const int width = (length + kPage - 1) / kPage;
    pages_ = rows * width;
    const int64_t count = int64_t{layers} * pages_ * kKvHeads * kPage * kHeadDim;
    k_ = arena_.Draw(count, 1);
    v_ = arena_.Draw(count, int64_t{1} << 40);
    q_ = arena_.Draw(int64_t{rows} * kHeads * kHeadDim, int64_t{1} << 41);
    out_ = arena_.Allocate<BF16>(static_cast<size_t>(rows) * kHeads * kHeadDim);
    table_.resize(pages_);
    std::iota(table_.begin(), table_.end(), 0);
    std::shuffle(table_.begin(), table_.end(), std::mt19937(7));
    begins_.resize(rows + 1);
    for (int row = 0; row <= rows; ++row) begins_[row] = row * width;
    indices_ = arena_.Upload(table_);
    indptr_ = arena_.Upload(begins_);
    last_ = arena_.Upload(std::vector<int32_t>(rows, length - (width - 1) * kPage));
    Plan();
  }

  void Run(int layer) {
    const int64_t begin = int64_t{layer % layers_} * pages_ * kKvHeads * kPage * kHeadDim;
    flashinfer::paged_kv_t<BF16, int32_t> cache(kKvHeads, kPage, kHeadDim, rows_,
                                                flashinfer::QKVLayout::kHND, k_ + begin, v_ + begin,
                                                indices_, indptr_, last_);
    Params params(q_, nullptr, cache, out_, nullptr, nullptr, kHeads, kHeads * kHeadDim, kHeadDim,
                  -1, 0.0f, Scale(), 1.0f, 1e4f);
    const auto* plan = reinterpret_cast<const char*>(plan_space_);
    const auto of_plan = [&](int64_t at) {
      return reinterpret_cast<int32_t*>(const_cast<char*>(plan) + at);
    };
    params.padded_batch_size = static_cast<uint32_t>(plan_.padded_batch_size);
    params.request_indices = of_plan(plan_.request_indices_offset);
    params.kv_tile_indices = of_plan(plan_.kv_tile_indices_offset);
    params.o_indptr = of_plan(plan_.o_indptr_offset);
    params.kv_chunk_size_ptr = of_plan(plan_.kv_chunk_size_ptr_offset);
    BF16* parts = nullptr;
    float* sums = nullptr;
    if (plan_.split_kv) {
      parts = reinterpret_cast<BF16*>(workspace_ + plan_.v_offset);
      sums = reinterpret_cast<float*>(workspace_ + plan_.s_offset);
    }
    Check(
        (flashinfer::BatchDecodeWithPagedKVCacheDispatched<kHeadDim, kNoRotation, Variant, Params>(
            params, parts, sums, /*enable_pdl=*/false, nullptr)));
  }

  // The largest difference from plain attention, over all query heads of layer 0.
  double Error() {
    Run(0);
    Check(cudaDeviceSynchronize());
    const auto read = [](const BF16* from, size_t count) {
      std::vector<BF16> values(count);
      Check(cudaMemcpy(values.data(), from, count * sizeof(BF16), cudaMemcpyDeviceToHost));
      return values;
    };
    const size_t entries = static_cast<size_t>(pages_) * kKvHeads * kPage * kHeadDim;
    const std::vector<BF16> k = read(k_, entries), v = read(v_, entries);
    const std::vector<BF16> q = read(q_, static_cast<size_t>(rows_) * kHeads * kHeadDim);
    const std::vector<BF16> out = read(out_, static_cast<size_t>(rows_) * kHeads * kHeadDim);
    double worst = 0;
    for (int row = 0; row < rows_; ++row) {
      for (int head = 0; head < kHeads; ++head) {
        const size_t at = (static_cast<size_t>(row) * kHeads + head) * kHeadDim;
        const std::vector<double> expected = Plain(row, head / kGroup, &q[at], k, v);
        for (int d = 0; d < kHeadDim; ++d)
          worst = std::max(worst, std::abs(expected[d] - __bfloat162float(out[at + d])));
      }
    }
    return worst;
  }

 private:
  static float Scale() { return 1.0f / std::sqrt(static_cast<float>(kHeadDim)); }

  std::vector<double> Plain(int row, int kv_head, const BF16* q, const std::vector<BF16>& k,
                            const std::vector<BF16>& v) const {
    std::vector<double> out(kHeadDim, 0.0);
    double sum = 0;
    for (int entry = 0; entry < length_; ++entry) {
      const size_t page = table_[begins_[row] + entry / kPage];
      const size_t at = ((page * kKvHeads + kv_head) * kPage + entry % kPage) * kHeadDim;
      double logit = 0;
      for (int d = 0; d < kHeadDim; ++d)
        logit += double{__bfloat162float(q[d])} * __bfloat162float(k[at + d]);
      const double weight = std::exp(logit * Scale());
      sum += weight;
      for (int d = 0; d < kHeadDim; ++d) out[d] += weight * __bfloat162float(v[at + d]);
    }
    for (double& value : out) value /= sum;
    return out;
  }

  void Plan() {
    workspace_ = arena_.Allocate<char>(kWorkspace);
    plan_space_ = arena_.Allocate<char>(kPlanSpace);
    void* pinned = nullptr;
    Check(cudaMallocHost(&pinned, kPlanSpace));
    Check((flashinfer::DecodePlan<kHeadDim, kNoRotation, Variant, Params>(
        workspace_, kWorkspace, plan_space_, pinned, kPlanSpace, plan_, begins_.data(), rows_,
        kHeads, kPage, /*enable_cuda_graph=*/false, nullptr,
        flashinfer::BatchDecodeWithPagedKVCacheWorkEstimationDispatched<
            kGroup, kHeadDim, kNoRotation, Variant, Params>)));
    Check(cudaDeviceSynchronize());
    Check(cudaFreeHost(pinned));
  }

  Arena arena_;
  int rows_, length_, layers_, pages_ = 0;
  BF16 *k_ = nullptr, *v_ = nullptr, *q_ = nullptr, *out_ = nullptr;
  std::vector<int32_t> table_, begins_;
  int32_t *indices_ = nullptr, *indptr_ = nullptr, *last_ = nullptr;
  char *workspace_ = nullptr, *plan_space_ = nullptr;
  flashinfer::DecodePlanInfo plan_;
};

double SecondsOf(World* world) {
  const auto time = [&](int calls) {
    Check(cudaDeviceSynchronize());
    const double start = Now();
    for (int i = 0; i < calls; ++i) world->Run(i);
    Check(cudaDeviceSynchronize());
    return (Now() - start) / calls;
  };
  time(2);
  const int calls = std::clamp(static_cast<int>(0.03 / std::max(time(1), 1e-6)), 1, 5000);
  return std::min({time(calls), time(calls), time(calls)});
}

int Main(int argc, char** argv) {
  std::string json;
  double seconds = 20;
  for (int i = 1; i + 1 < argc; i += 2) {
    if (std::strcmp(argv[i], "--json") == 0) json = argv[i + 1];
    if (std::strcmp(argv[i], "--seconds") == 0) seconds = std::atof(argv[i + 1]);
  }
  const double end = Now() + seconds;
  const double error = World(3, 777, 1).Error();
  std::printf("FlashInfer's decode attention: off by %.4f at most\n", error);
  if (!(error < 0.02)) {
    std::fprintf(stderr, "peer_flashinfer: its result is wrong\n");
    return 1;
  }
  MeasurementLog log(json);
  const std::vector<std::pair<int, int>> shapes = {{64, 512},  {64, 1024}, {64, 2048},
                                                   {256, 205}, {256, 512}, {16, 1024},
                                                   {1, 1024},  {1, 8192},  {1, 131072}};
  for (const auto& [rows, length] : shapes) {
    if (Now() > end) break;
    const double layer = 4.0 * rows * kKvHeads * length * kHeadDim;
    World world(rows, length, std::clamp(static_cast<int>(3e9 / layer), 1, 16));
    const double taken = SecondsOf(&world);
    std::printf("%d x %d: %.1f us\n", rows, length, taken * 1e6);
    log.WriteAs("flashinfer", "decode_attention",
                {{"variant", std::string("decode.cuh")},
                 {"batch", rows},
                 {"length", length},
                 {"seconds", taken}});
  }
  return 0;
}

}  // namespace
}  // namespace hydrant

int main(int argc, char** argv) { return hydrant::Main(argc, argv); }
