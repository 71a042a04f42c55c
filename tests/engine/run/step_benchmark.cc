// Whole steps of the engine on a device, with random weights of a real model's shape, beside the
// device's roofline: weights are read once or multiplied with all rows, whichever takes longer, and
// every sequence's keys, values and, if kept, scores are moved. The bandwidth is measured by a copy
// in the same run, the product rate by a large product.
//
//   step_benchmark --shape tests/engine/run/shapes/llama-3.1-8b.json [--device cuda]
//                  [--dtype bfloat16] [--threads 2] [--json FILE] [--quick 0] [--case h2o:64:1024]
//                  [--pages consecutive]
//
// Prints a markdown table.
//   --quick 1                        small sizes, to check that it runs
//   --case POLICY:SEQUENCES:CONTEXT  this case alone
//   --pages shuffled                 pages in random order, as in a pool that has been in use
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <limits>
#include <map>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "engine/model/model_source.h"
#include "engine/run/engine.h"
#include "kernels/backend.h"
#include "kernels/page_element.h"
#include "tests/engine/run/equal_batch.h"
#include "tests/measurement_log.h"

namespace hydrant {
namespace {

struct Case {
  std::string policy;
  int batch = 0;
  int context = 0;
};
const Case kCases[] = {{"full", 1, 16},    {"full", 1, 1024}, {"full", 16, 1024},
                       {"full", 64, 1024}, {"h2o", 64, 1024}, {"h2o", 256, 1024}};
const Case kQuickCases[] = {{"full", 1, 16}, {"h2o", 4, 40}};
constexpr int kSteps = 16;   // of one measurement
constexpr int kRepeats = 5;  // the fastest counts; one warm-up run precedes them

[[noreturn]] void Fail(const absl::Status& status) {
  std::fprintf(stderr, "%s\n", std::string(status.message()).c_str());
  std::exit(1);
}

Case CaseOf(const std::string& text) {
  Case c;
  char policy[32] = {};
  if (std::sscanf(text.c_str(), "%31[^:]:%d:%d", policy, &c.batch, &c.context) != 3)
    Fail(absl::InvalidArgumentError("--case: POLICY:SEQUENCES:CONTEXT"));
  c.policy = policy;
  return c;
}

// Bytes read and written per second.
double CopyBandwidth(const std::string& device, int threads, size_t bytes) {
  auto backend = CreateBackend(device, {.num_threads = threads});
  if (!backend.ok()) Fail(backend.status());
  auto from = (*backend)->Allocate(bytes), to = (*backend)->Allocate(bytes);
  if (!from.ok()) Fail(from.status());
  if (!to.ok()) Fail(to.status());
  double best = 0;
  for (int run = 0; run < 6; ++run) {
    const auto start = std::chrono::steady_clock::now();
    (*backend)->CopyOnDevice(to->get(), from->get(), bytes);
    if (absl::Status status = (*backend)->Synchronize(); !status.ok()) Fail(status);
    const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
    best = std::max(best, 2.0 * static_cast<double>(bytes) / taken.count());
  }
  return best;
}

// Floating point operations per second of a large product. Of random numbers, because zeros would
// draw less power.
double ProductRate(const std::string& device, int threads, WeightDType dtype, int size) {
  auto backend = CreateBackend(device, {.num_threads = threads});
  if (!backend.ok()) Fail(backend.status());
  const size_t count = static_cast<size_t>(size) * size;
  std::vector<float> values(count);
  std::minstd_rand rng(1);
  for (float& value : values) value = static_cast<float>(rng() % 2001) * 1e-3f - 1.0f;
  const WeightPart part{DType::kF32, values.data(), size, size};
  auto weight = (*backend)->PackWeight(std::span(&part, 1), dtype);
  if (!weight.ok()) Fail(weight.status());
  const DType x_dtype =
      (*backend)->ActivationDType((*backend)->PackedDType(DType::kF32, dtype, size));
  auto x = (*backend)->Allocate(BytesOf(x_dtype, count));
  auto y = (*backend)->Allocate(count * sizeof(float));
  if (!x.ok()) Fail(x.status());
  if (!y.ok()) Fail(y.status());
  std::vector<uint8_t> rows(BytesOf(x_dtype, count));
  for (size_t i = 0; i < count; ++i) StorePageElement(x_dtype, rows.data(), i, values[i]);
  (*backend)->CopyToDevice(x->get(), rows.data(), rows.size());
  double best = 0;
  for (int run = 0; run < 6; ++run) {
    const auto start = std::chrono::steady_clock::now();
    (*backend)->Matmul({.x = x->get(),
                        .x_dtype = x_dtype,
                        .m = size,
                        .weight = weight->get(),
                        .y = static_cast<float*>(y->get())});
    if (absl::Status status = (*backend)->Synchronize(); !status.ok()) Fail(status);
    const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
    best = std::max(best, 2.0 * static_cast<double>(count) * size / taken.count());
  }
  return best;
}

// Bytes and arithmetic of a step, and the device's rates for them.
struct Roofline {
  double weight_bytes = 0;    // read by a step
  double weight_numbers = 0;  // multiplied with each row
  double bandwidth = 0;       // bytes per second
  double products = 0;        // floating point operations per second
};

// Bytes of the weights that a step reads: of an untied embedding it reads single rows only.
double WeightBytesRead(const Engine& engine, WeightDType dtype) {
  const ModelConfig& config = engine.config();
  const DType element = dtype == WeightDType::kBFloat16 ? DType::kBF16 : DType::kF32;
  const size_t embedding =
      BytesOf(element, static_cast<size_t>(config.vocab_size) * config.hidden_size);
  return static_cast<double>(engine.memory().weights) -
         (config.tied_embeddings ? 0.0 : static_cast<double>(embedding));
}

// Bytes of keys, values and, if kept, scores (read and written).
double CacheBytesMoved(const Engine& engine, const Case& c, int entries) {
  const ModelConfig& config = engine.config();
  const double scores = c.policy == "full" ? 0.0 : 2.0 * sizeof(float);
  const double entry =
      2.0 * static_cast<double>(BytesOf(engine.kv_layout().dtype, config.head_dim)) + scores;
  return entry * entries * c.batch * config.num_layers * config.num_kv_heads;
}

void Measure(Engine* engine, const std::string& model, const Case& c, bool shuffled,
             const Roofline& roofline, int steps, MeasurementLog* log) {
  EqualBatch batch(engine, c.policy, c.batch, c.context, (kRepeats + 1) * steps, shuffled);
  const double prefill = batch.Prefill(c.context);
  double seconds = std::numeric_limits<double>::infinity();
  int at = c.context;
  for (int run = 0; run <= kRepeats; ++run) {
    const double taken = batch.Decode(at, steps) / steps;
    at += steps;
    if (run > 0) seconds = std::min(seconds, taken);
  }
  const double weights = std::max(roofline.weight_bytes / roofline.bandwidth,
                                  2.0 * roofline.weight_numbers * c.batch / roofline.products);
  const double bound =
      weights + CacheBytesMoved(*engine, c, batch.Entries(at)) / roofline.bandwidth;
  std::printf("| %s | %d | %d | %.3f | %.0f | %.3f | %.2f | %.0f |\n", c.policy.c_str(), c.batch,
              c.context, seconds * 1e3, c.batch / seconds, bound * 1e3, seconds / bound,
              static_cast<double>(c.batch) * c.context / prefill);
  std::fflush(stdout);
  log->Write("step", {{"model", model},
                      {"policy", c.policy},
                      {"batch", c.batch},
                      {"context", c.context},
                      {"seconds", seconds},
                      {"bound_seconds", bound},
                      {"prompt_tokens_per_s", static_cast<double>(c.batch) * c.context / prefill}});
}

// Sets the smallest pool, batch and model length that fit all cases.
void MakeRoom(const ModelConfig& config, const std::vector<Case>& cases, int new_tokens,
              EngineOptions* options) {
  EngineLimits limits;
  limits.num_layers = config.num_layers;
  limits.num_kv_heads = config.num_kv_heads;
  int64_t pages = 0;
  int length = 0;
  options->max_num_seqs = 0;
  for (const Case& c : cases) {
    pages = std::max(pages, EqualBatch::Pages(limits, c.policy, c.batch, c.context, new_tokens));
    length = std::max(length, c.context + new_tokens);
    options->max_num_seqs = std::max(options->max_num_seqs, c.batch);
  }
  options->num_blocks_override = static_cast<int>(pages);
  options->max_model_len = length;
}

int Main(int argc, char** argv) {
  std::map<std::string, std::string> flags = {
      {"shape", ""},  {"device", "cuda"}, {"json", ""}, {"dtype", "bfloat16"},
      {"quick", "0"}, {"threads", "2"},   {"case", ""}, {"pages", "consecutive"}};
  for (int i = 1; i < argc; i += 2) {
    if (i + 1 == argc || std::strncmp(argv[i], "--", 2) != 0 || flags.count(argv[i] + 2) == 0) {
      std::fprintf(stderr, "unknown flag or no value: %s\n", argv[i]);
      return 1;
    }
    flags[argv[i] + 2] = argv[i + 1];
  }
  const std::map<std::string, WeightDType> dtypes = {{"bfloat16", WeightDType::kBFloat16},
                                                     {"float32", WeightDType::kFloat32}};
  if (dtypes.count(flags["dtype"]) == 0)
    Fail(absl::InvalidArgumentError("--dtype: bfloat16 or float32"));
  if (flags["pages"] != "consecutive" && flags["pages"] != "shuffled")
    Fail(absl::InvalidArgumentError("--pages: consecutive or shuffled"));
  const bool shuffled = flags["pages"] == "shuffled";
  const bool quick = flags["quick"] != "0";
  std::vector<Case> cases(std::begin(kCases), std::end(kCases));
  if (quick) cases.assign(std::begin(kQuickCases), std::end(kQuickCases));
  if (!flags["case"].empty()) cases = {CaseOf(flags["case"])};
  const int steps = quick ? 2 : kSteps;
  auto source = OpenModel(flags["shape"], LoadFormat::kDummy);
  if (!source.ok()) Fail(source.status());

  EngineOptions options;
  options.device = flags["device"];
  options.num_threads = std::max(1, std::atoi(flags["threads"].c_str()));
  options.dtype = dtypes.at(flags["dtype"]);
  MakeRoom((*source)->config(), cases, (kRepeats + 1) * steps, &options);

  Roofline roofline;
  roofline.bandwidth =
      CopyBandwidth(options.device, options.num_threads, quick ? size_t{1} << 20 : size_t{2} << 30);
  roofline.products =
      ProductRate(options.device, options.num_threads, *options.dtype, quick ? 256 : 4096);
  auto engine =
      Engine::Create(std::shared_ptr<const ModelSource>(*std::move(source)), options, nullptr);
  if (!engine.ok()) Fail(engine.status());
  std::printf("%s; %.2f GB of weights; copy %.0f GB/s, read and written; products %.2f TFLOP/s\n\n",
              (*engine)->Description().c_str(),
              static_cast<double>((*engine)->memory().weights) * 1e-9, roofline.bandwidth * 1e-9,
              roofline.products * 1e-12);
  std::printf(
      "| policy | batch | context | ms a step | tokens/s | roofline, ms | ratio | prompt "
      "tokens/s "
      "|\n|---|---|---|---|---|---|---|---|\n");
  roofline.weight_bytes = WeightBytesRead(**engine, *options.dtype);
  roofline.weight_numbers =
      roofline.weight_bytes / (*options.dtype == WeightDType::kBFloat16 ? 2.0 : 4.0);
  MeasurementLog log(flags["json"]);
  log.Write("device", {{"program", "step_benchmark"}, {"description", (*engine)->Description()}});
  const std::string model = std::filesystem::path(flags["shape"]).stem().string();
  for (const Case& c : cases) Measure(engine->get(), model, c, shuffled, roofline, steps, &log);
  return 0;
}

}  // namespace
}  // namespace hydrant

int main(int argc, char** argv) { return hydrant::Main(argc, argv); }
