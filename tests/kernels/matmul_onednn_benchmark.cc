// Compares the cpu backend's matrix product with oneDNN's, for SmolLM2-135M's shapes, one thread
// each: the reason for the backend's own kernels. Both multiply fp32 rows by weights packed once in
// their preferred layout. oneDNN gets a primitive for each number of rows, and its bf16 times
// include the conversion of the rows, as ours do. The test cycles through twenty weights, so that
// they come from memory as in a model.
//
//   OMP_WAIT_POLICY=passive matmul_onednn_benchmark
//   HYDRANT_CPU_ISA=avx2 ONEDNN_MAX_CPU_ISA=AVX2 OMP_WAIT_POLICY=passive matmul_onednn_benchmark
//
// Built if libdnnl-dev is installed.
#include <fmt/format.h>
#include <omp.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <oneapi/dnnl/dnnl.hpp>
#include <optional>
#include <random>
#include <vector>

#include "kernels/backend.h"

namespace hydrant {
namespace {

constexpr int kWeights = 20;
constexpr int kRepeats = 5;

struct Problem {
  int m, n, k;
  bool bf16;
  std::vector<float> x, w;  // [m, k], [n, k]
};

double Seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Seconds per product of the fastest repeat.
template <typename Multiply>
double Best(const Multiply& multiply) {
  double best = std::numeric_limits<double>::infinity();
  for (int repeat = 0; repeat < kRepeats; ++repeat) {
    const double start = Seconds();
    for (int i = 0; i < kWeights; ++i) multiply(i);
    best = std::min(best, (Seconds() - start) / kWeights);
  }
  return best;
}

double Ours(Backend& backend, const Problem& p, std::vector<float>* y) {
  std::vector<std::unique_ptr<Weight>> weights;
  for (int i = 0; i < kWeights; ++i) {
    const WeightPart part{DType::kF32, p.w.data(), p.n, p.k};
    weights.push_back(*backend.PackWeight(std::span(&part, 1),
                                          p.bf16 ? WeightDType::kBFloat16 : WeightDType::kFloat32));
  }
  return Best([&](int i) {
    backend.Matmul({.x = p.x.data(), .m = p.m, .weight = weights[i].get(), .y = y->data()});
  });
}

// Returns nothing if oneDNN has no such primitive on this machine.
std::optional<double> OneDnn(const dnnl::engine& engine, dnnl::stream& stream, const Problem& p,
                             std::vector<float>* y) try {
  using dnnl::memory, dnnl::matmul, dnnl::reorder;
  using Tag = memory::format_tag;
  constexpr auto kF32 = memory::data_type::f32;
  const auto type = p.bf16 ? memory::data_type::bf16 : kF32;
  const memory::desc x_form({p.m, p.k}, type, Tag::ab), y_form({p.m, p.n}, kF32, Tag::ab);
  const matmul::primitive_desc form(
      matmul::desc(x_form, memory::desc({p.k, p.n}, type, Tag::any), y_form), engine);
  const matmul multiply(form);
  memory given_w({{p.k, p.n}, kF32, Tag::ba}, engine, const_cast<float*>(p.w.data()));
  memory given_x({{p.m, p.k}, kF32, Tag::ab}, engine, const_cast<float*>(p.x.data()));
  std::vector<memory> weights;
  for (int i = 0; i < kWeights; ++i) {
    weights.emplace_back(form.weights_desc(), engine);
    reorder(given_w, weights.back()).execute(stream, given_w, weights.back());
  }
  memory converted_x(x_form, engine), result(y_form, engine, y->data());
  const reorder convert(given_x, converted_x);
  return Best([&](int i) {
    memory& x = p.bf16 ? converted_x : given_x;
    if (p.bf16) convert.execute(stream, given_x, converted_x);
    multiply.execute(stream,
                     {{DNNL_ARG_SRC, x}, {DNNL_ARG_WEIGHTS, weights[i]}, {DNNL_ARG_DST, result}});
    stream.wait();
  });
} catch (const dnnl::error&) {
  return std::nullopt;
}

// Both results must agree, or the comparison is meaningless.
bool Agree(const std::vector<float>& a, const std::vector<float>& b, double tolerance) {
  for (size_t i = 0; i < a.size(); ++i) {
    if (std::abs(a[i] - b[i]) > tolerance) return false;
  }
  return true;
}

int Run() {
  omp_set_num_threads(1);
  const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  dnnl::stream stream(engine);
  const std::unique_ptr<Backend> backend = *CreateCpuBackend({.num_threads = 1});
  fmt::print("{}\n", backend->Description());
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  for (const auto& [n, k] : {std::pair(960, 576), {576, 576}, {3072, 576}, {576, 1536}}) {
    for (const int m : {1, 4, 16, 64, 256, 512}) {
      for (const bool bf16 : {false, true}) {
        Problem p{
            m, n, k, bf16, std::vector<float>(size_t(m) * k), std::vector<float>(size_t(n) * k)};
        for (float& v : p.x) v = normal(random);
        for (float& v : p.w) v = normal(random) * 0.03F;
        std::vector<float> ours_y(size_t(m) * n), peer_y(ours_y.size());
        const double ours = Ours(*backend, p, &ours_y);
        const std::optional<double> peer = OneDnn(engine, stream, p, &peer_y);
        const double operations = 2e-9 * m * n * k;
        if (!peer.has_value()) {
          fmt::print(
              "{:4} x {:4}, {:3} rows, {}: {:7.1f} GFLOP/s; oneDNN has no such primitive here\n", n,
              k, m, bf16 ? "bf16" : "f32 ", operations / ours);
          continue;
        }
        if (!Agree(ours_y, peer_y, bf16 ? 0.05 : 1e-3)) {
          fmt::print("{} x {}, {} rows: the results differ\n", n, k, m);
          return 1;
        }
        fmt::print("{:4} x {:4}, {:3} rows, {}: {:7.1f} GFLOP/s, oneDNN {:7.1f}, ratio {:.2f}\n", n,
                   k, m, bf16 ? "bf16" : "f32 ", operations / ours, operations / *peer,
                   *peer / ours);
      }
    }
  }
  return 0;
}

}  // namespace
}  // namespace hydrant

int main() { return hydrant::Run(); }
