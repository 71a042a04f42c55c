// Start-up check: runs small prompts, whole and from a later query on, through the open kernel and
// ours, with a sum of each key's weights, which uses the open kernel's maxima and sums.
#include <chrono>
#include <cmath>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include "kernels/cuda/ops.h"
#include "kernels/cuda/sm90_attention.h"
#include "kernels/float16.h"

namespace hydrant::cuda {
namespace {

constexpr int kTokens = 300, kHeads = 4, kKvHeads = 2;
constexpr int kLater = 160;  // not a multiple of a tile
constexpr auto kPatience = std::chrono::seconds(10);
// Values are within 1. The kernels round weights relative to different maxima, and
// the output to bf16.
constexpr float kOutputBound = 0.02f, kSumBound = 0.02f;

struct Prompt {
  int head_dim = 0;
  uint16_t *q = nullptr, *k = nullptr, *v = nullptr, *out = nullptr;
  float* sums = nullptr;

  size_t Queries() const { return size_t{1} * kTokens * kHeads * head_dim; }
  size_t Keys() const { return size_t{1} * kTokens * kKvHeads * head_dim; }
  static constexpr size_t Sums() { return size_t{1} * kTokens * kKvHeads; }
};

// Random numbers within 1.
std::vector<uint16_t> Draw(size_t count, uint32_t seed) {
  std::vector<uint16_t> numbers(count);
  for (uint16_t& number : numbers) {
    seed = seed * 1664525u + 1013904223u;
    number = FloatToBF16(static_cast<float>(seed >> 8) / (1 << 23) - 1.0f);
  }
  return numbers;
}

// Waits for the stream, up to a deadline.
cudaError_t WaitFor(cudaStream_t stream) {
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  while (true) {
    const cudaError_t state = cudaStreamQuery(stream);
    if (state != cudaErrorNotReady) return state;
    if (std::chrono::steady_clock::now() > deadline) return cudaErrorLaunchTimeout;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

struct Results {
  std::vector<uint16_t> out;
  std::vector<float> sums;
};

cudaError_t Attend(const Context& context, const Prompt& prompt, int first, Results* results) {
  const size_t row = size_t{1} * kHeads * prompt.head_dim;
  PrefillAttentionArgs args;
  args.q = {prompt.q + first * row, DType::kBF16};
  args.k = {prompt.k, DType::kBF16};
  args.v = {prompt.v, DType::kBF16};
  args.kv_head_stride = int64_t{kTokens} * prompt.head_dim;
  args.num_queries = kTokens - first;
  args.first_position = first;
  args.num_heads = kHeads;
  args.num_kv_heads = kKvHeads;
  args.head_dim = prompt.head_dim;
  args.scale = 0.25f;
  args.out = prompt.out + first * row;
  args.out_dtype = DType::kBF16;
  args.precision = DType::kBF16;
  args.statistics[0].out = prompt.sums;
  args.statistics[0].stride = kTokens;
  results->out.resize(prompt.Queries());
  results->sums.resize(Prompt::Sums());
  cudaError_t error =
      cudaMemsetAsync(prompt.out, 0, prompt.Queries() * sizeof(uint16_t), context.stream);
  if (error == cudaSuccess)
    error = cudaMemsetAsync(prompt.sums, 0, Prompt::Sums() * sizeof(float), context.stream);
  if (error == cudaSuccess) error = PrefillAttention(context, args);
  if (error == cudaSuccess) error = WaitFor(context.stream);
  if (error == cudaSuccess)
    error = cudaMemcpy(results->out.data(), prompt.out, prompt.Queries() * sizeof(uint16_t),
                       cudaMemcpyDeviceToHost);
  if (error == cudaSuccess)
    error = cudaMemcpy(results->sums.data(), prompt.sums, Prompt::Sums() * sizeof(float),
                       cudaMemcpyDeviceToHost);
  return error;
}

bool Agree(const Results& a, const Results& b) {
  for (size_t i = 0; i < a.out.size(); ++i) {
    // NaN also counts as different.
    if (!(std::abs(BF16ToFloat(a.out[i]) - BF16ToFloat(b.out[i])) <= kOutputBound)) return false;
  }
  for (size_t i = 0; i < a.sums.size(); ++i) {
    if (!(std::abs(a.sums[i] - b.sums[i]) <= kSumBound * b.sums[i] + 1e-4f)) return false;
  }
  return true;
}

cudaError_t Fill(Prompt* prompt, void* memory) {
  auto* at = static_cast<uint16_t*>(memory);
  prompt->q = at;
  prompt->k = prompt->q + prompt->Queries();
  prompt->v = prompt->k + prompt->Keys();
  prompt->out = prompt->v + prompt->Keys();
  prompt->sums = reinterpret_cast<float*>(prompt->out + prompt->Queries());
  const std::vector<uint16_t> numbers = Draw(prompt->Queries() + 2 * prompt->Keys(), 1);
  return cudaMemcpy(memory, numbers.data(), numbers.size() * sizeof(uint16_t),
                    cudaMemcpyHostToDevice);
}

std::string Compare(const Context& context, int head_dim, void* memory, cudaError_t* error) {
  Prompt prompt;
  prompt.head_dim = head_dim;
  *error = Fill(&prompt, memory);
  Context ours = context, open = context;
  ours.sm90_attention = false;
  open.sm90_attention = true;
  ours.sm90_statistics = open.sm90_statistics = false;  // not checked here
  for (const int first : {0, kLater}) {
    Results expected, found;
    if (*error == cudaSuccess) *error = Attend(ours, prompt, first, &expected);
    if (*error == cudaSuccess) *error = Attend(open, prompt, first, &found);
    if (*error != cudaSuccess) break;
    if (!Agree(found, expected))
      return "its results for head_dim " + std::to_string(head_dim) + " are off";
  }
  return *error == cudaSuccess ? "" : cudaGetErrorString(*error);
}

}  // namespace

Sm90Verdict CheckSm90Attention(const Context& context) {
  constexpr size_t kBytes = size_t{1} << 20;  // more than a prompt takes
  static_assert(kBytes >= 128 * (2 * kTokens * kHeads + 2 * kTokens * kKvHeads) * 2 +
                              Prompt::Sums() * sizeof(float));
  void* memory = nullptr;
  cudaError_t error = cudaMalloc(&memory, kBytes);
  if (error != cudaSuccess) {
    cudaGetLastError();
    return {"there is no memory to check it", false};
  }
  Sm90Verdict verdict;
  for (const int head_dim : {64, 128}) {
    if (verdict.why_not.empty()) verdict.why_not = Compare(context, head_dim, memory, &error);
  }
  // A refused launch leaves the device intact; a later failure does not.
  verdict.fatal = error != cudaSuccess && cudaStreamQuery(context.stream) != cudaSuccess;
  if (!verdict.fatal) {
    cudaGetLastError();
    cudaFree(memory);
  }
  return verdict;
}

}  // namespace hydrant::cuda
