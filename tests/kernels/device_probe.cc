// Times the CUDA backend's heavy operations on shapes of Llama-3.1-8B, a few seconds per part,
// against the device's limits; scripts/gpu-check runs it when device time is short. Independent of
// the rest of the project, so that it and the backend's shared object can be compiled on the
// machine with the card (scripts/device-probe) and variants compared side by side. Data are
// generated on the device.
//
//   device_probe [--module libhydrant_cuda.so] [--ceilings libhydrant_ceilings.so]
//                [--only ceilings,decode,prompts,products] [--decode 64x1024] [--prompt 8192]
//                [--name TEXT] [--json FILE] [--quick]
//
// Ceilings are skipped without their shared object. --decode, --prompt: only this shape. --name:
// name of the variant in the JSON lines. --quick: small shapes, one call each.
#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "kernels/cuda/device.h"
#include "kernels/cuda/tiles.h"
#include "tests/kernels/device_ceilings.h"
#include "tests/kernels/llama_attention.h"
#include "tests/measurement_log.h"

namespace hydrant {
namespace {

constexpr double kRunSeconds = 0.03;  // per run of calls; the fastest of kRuns counts
constexpr int kRuns = 3;

double Now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

[[noreturn]] void Fail(const std::string& why) {
  std::fprintf(stderr, "device_probe: %s\n", why.c_str());
  std::exit(1);
}

struct Options {
  std::string module = "libhydrant_cuda.so", ceilings = "libhydrant_ceilings.so", only, name, json,
              decode, prompt;
  bool quick = false;

  bool Wants(const char* part) const {
    return only.empty() ||
           ("," + only + ",").find(std::string(",") + part + ",") != std::string::npos;
  }
};

// A device, its memory, and timing of operations. Exits the process on a device error.
class Device {
 public:
  Device(const std::string& module, bool quick) : quick_(quick) {
    void* library = dlopen(module.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) Fail(dlerror());
    auto* open = reinterpret_cast<OpenCudaDevice*>(dlsym(library, kOpenCudaDevice));
    if (open == nullptr) Fail(module + " is no CUDA backend");
    std::array<char, 512> why = {};
    device_.reset(open({}, why.data(), why.size()));
    if (device_ == nullptr) Fail(why.data());
  }
  ~Device() { FreeAll(); }

  CudaDevice& operator*() { return *device_; }
  CudaDevice* operator->() { return device_.get(); }

  void Check(int error) {
    if (error != 0) Fail(device_->ErrorText(error));
  }
  template <typename T>
  T* Allocate(size_t count) {
    void* memory = nullptr;
    Check(device_->Allocate(std::max<size_t>(count * sizeof(T), 1), &memory));
    memory_.push_back(memory);
    return static_cast<T*>(memory);
  }
  template <typename T>
  T* Upload(const std::vector<T>& values) {
    T* to = Allocate<T>(values.size());
    Check(device_->CopyToDevice(to, values.data(), values.size() * sizeof(T)));
    return to;
  }
  void* Normals(size_t count, DType dtype) {
    void* out = Allocate<uint8_t>(BytesOf(dtype, count));
    Check(
        device_->DrawNormals({{.key = ++draws_}, false, dtype, static_cast<int64_t>(count), out}));
    return out;
  }
  uint16_t* Halves(size_t count) { return static_cast<uint16_t*>(Normals(count, DType::kBF16)); }
  float* Floats(size_t count) { return static_cast<float*>(Normals(count, DType::kF32)); }
  void FreeAll() {
    for (void* memory : memory_) Check(device_->Free(memory));
    memory_.clear();
  }

  using Operation = std::function<int()>;
  // Seconds per call, with back-to-back calls.
  double Time(const Operation& operation) {
    const double once = std::max(TimeCalls(1, operation), 1e-6);
    const int calls = quick_ ? 1 : std::clamp(static_cast<int>(kRunSeconds / once), 1, 10000);
    double fastest = TimeCalls(calls, operation);
    for (int run = 1; run < (quick_ ? 1 : kRuns); ++run)
      fastest = std::min(fastest, TimeCalls(calls, operation));
    return fastest;
  }
  // The same with cold caches and TLBs: other memory is moved before each call, and
  // its time subtracted.
  double TimeCold(const Operation& operation) {
    const size_t bytes = quick_ ? 1 << 16 : size_t{200} << 20;
    auto* from = Allocate<uint8_t>(bytes);
    auto* to = Allocate<uint8_t>(bytes);
    const Operation evict = [&] { return device_->CopyOnDevice(to, from, bytes); };
    const double both = Time([&] {
      const int error = evict();
      return error != 0 ? error : operation();
    });
    return std::max(both - Time(evict), 1e-9);
  }

 private:
  double TimeCalls(int calls, const Operation& operation) {
    Check(device_->Synchronize());
    const double start = Now();
    for (int i = 0; i < calls; ++i) Check(operation());
    Check(device_->Synchronize());
    return (Now() - start) / calls;
  }

  const bool quick_;
  std::unique_ptr<CudaDevice> device_;
  std::vector<void*> memory_;
  uint64_t draws_ = 0;
};

// A batch that cycles through its layers.
class DecodeWorld {
 public:
  DecodeWorld(Device* device, int rows, int length, bool quick)
      : args_(MakeDecode(*device, rows, length, quick ? 1 : LayersOf(3e9, rows, length))) {}

  // Attention of the next layer, with one rule for all rows.
  Device::Operation Operation(Device* device, const DecodeRule& rule) {
    args_.tables.rules = device->Upload(std::vector<DecodeRule>(args_.num_rows, rule));
    args_.max_scored_entries = rule.scored ? args_.max_entries : 0;
    return [this, device] {
      args_.layer = (args_.layer + 1) % args_.tables.num_layers;
      return (*device)->DecodeAttention(args_);
    };
  }

 private:
  DecodeAttentionArgs args_;
};

class Probe {
 public:
  explicit Probe(const Options& options)
      : options_(options), device_(options.module, options.quick), log_(options.json) {}

  void Run() {
    std::printf("%s%s%s\n\n", device_->Description(), options_.name.empty() ? "" : ", ",
                options_.name.c_str());
    Write("device", {{"program", std::string("device_probe")},
                     {"description", "cuda: " + std::string(device_->Description())}});
    if (options_.Wants("ceilings")) MeasureCeilings();
    if (options_.Wants("products")) MeasureProducts();
    if (options_.Wants("decode")) MeasureDecode();
    if (options_.Wants("prompts")) MeasurePrompts();
  }

 private:
  void Write(const std::string& what, std::vector<MeasurementLog::Field> fields) {
    if (!options_.name.empty()) fields.emplace_back("module", options_.name);
    log_.Write(what, fields);
  }

  void MeasureCeilings() {
    void* library = dlopen(options_.ceilings.c_str(), RTLD_NOW | RTLD_LOCAL);
    auto* measure = library == nullptr
                        ? nullptr
                        : reinterpret_cast<MeasureCeiling*>(dlsym(library, kMeasureCeiling));
    if (measure == nullptr) {
      std::printf("no ceilings: %s\n\n",
                  library == nullptr ? dlerror() : "the function is not there");
      return;
    }
    const size_t bytes = options_.quick ? size_t{1} << 16 : size_t{2} << 30;
    const size_t kernels = options_.quick ? 10 : 300;
    const auto seconds = [&](Ceiling ceiling, size_t size) {
      double taken = 0;
      device_.Check(measure(ceiling, size, options_.quick ? 1 : 20, &taken));
      return std::max(taken, 1e-9);
    };
    copy_ = 2.0 * static_cast<double>(bytes) / seconds(Ceiling::kCopy, bytes);
    Write("copy", {{"bytes_per_s", copy_}});
    const double read = static_cast<double>(bytes) / seconds(Ceiling::kRead, bytes);
    const double gather = static_cast<double>(bytes) / seconds(Ceiling::kGather, bytes);
    const double gap = seconds(Ceiling::kLaunches, kernels) / static_cast<double>(kernels);
    const double dependent_gap =
        seconds(Ceiling::kDependentLaunches, kernels) / static_cast<double>(kernels);
    std::printf(
        "copy %.0f GB/s, read %.0f, gathers of 64 bytes %.0f; an empty kernel in a graph %.2f us, "
        "dependent %.2f\n\n",
        copy_ * 1e-9, read * 1e-9, gather * 1e-9, gap * 1e6, dependent_gap * 1e6);
    Write("ceilings", {{"read_bytes_per_s", read},
                       {"gather_bytes_per_s", gather},
                       {"launch_seconds", gap},
                       {"dependent_launch_seconds", dependent_gap}});
  }

  struct Product {
    int n, k;
  };
  // The products of a layer (q, k and v; o; gate and up; down), one of gate and up, and a square.
  void MeasureProducts() {
    const std::vector<Product> shapes =
        options_.quick
            ? std::vector<Product>{{64, 32}}
            : std::vector<Product>{
                  {6144, 4096}, {4096, 4096}, {28672, 4096}, {4096, 14336}, {14336, 4096}};
    std::vector<int> rows = {1, 4, 16, 64, 256, 1024, 2048, 4096};
    if (options_.quick) rows = {1, 3};
    std::printf("| bf16 product, us by rows |");
    for (const int m : rows) std::printf(" %d |", m);
    std::printf(" most TFLOP/s |\n|---|");
    for (size_t i = 0; i <= rows.size(); ++i) std::printf("---|");
    std::printf("\n");
    for (const Product& shape : shapes) MeasureProduct(shape, rows);
    std::printf("\n| product of %d x %d in blocks, us by rows |", shapes.back().n, BlockColumns());
    if (options_.quick) rows = {1};
    if (!options_.quick) rows = {1, 8, 64};
    for (const int m : rows) std::printf(" %d |", m);
    std::printf("\n|---|");
    for (size_t i = 0; i < rows.size(); ++i) std::printf("---|");
    std::printf("\n");
    for (const DType type : {DType::kQ4_K, DType::kQ6_K, DType::kQ8_0})
      MeasureBlocks(type, {shapes.back().n, BlockColumns()}, rows);
    std::printf("\n");
  }

  // Cycles through weights, so that none is in L2 from before.
  void MeasureProduct(const Product& shape, const std::vector<int>& rows) {
    const size_t count = static_cast<size_t>(shape.n) * shape.k;
    const size_t copies =
        options_.quick ? 1 : std::max<size_t>(2, (size_t{200} << 20) / (2 * count));
    std::vector<CudaWeight> weights;
    for (size_t i = 0; i < copies; ++i)
      weights.emplace_back(shape.n, shape.k, DType::kBF16, device_.Normals(count, DType::kBF16));
    const auto most_rows = static_cast<size_t>(rows.back());
    const void* x = device_.Normals(most_rows * shape.k, DType::kBF16);
    auto* y = device_.Floats(most_rows * shape.n);
    std::printf("| %d x %d |", shape.n, shape.k);
    double best = 0;
    for (const int m : rows) {
      size_t next = 0;
      const double seconds = device_.Time([&] {
        const CudaWeight& weight = weights[next++ % weights.size()];
        return device_->Matmul(
            {.x = x, .x_dtype = DType::kBF16, .m = m, .weight = &weight, .y = y});
      });
      const double flops = 2.0 * m * static_cast<double>(count) / seconds;
      best = std::max(best, flops);
      std::printf(" %.1f |", seconds * 1e6);
      Write("matmul", {{"rows", m},
                       {"n", shape.n},
                       {"k", shape.k},
                       {"seconds", seconds},
                       {"flops", flops},
                       {"share_of_copy", ShareOfCopy(2.0 * static_cast<double>(count), seconds)}});
    }
    std::printf(" %.0f |\n", best * 1e-12);
    product_ = std::max(product_, best);
    device_.FreeAll();
  }

  int BlockColumns() const { return options_.quick ? 256 : 4096; }
  // A block-quantized weight. Its bytes are random, so its values are arbitrary.
  void MeasureBlocks(DType type, const Product& shape, const std::vector<int>& rows) {
    const size_t bytes = BytesOfTiles(type, shape.n, shape.k);
    const size_t copies = options_.quick ? 1 : (size_t{200} << 20) / bytes + 1;
    std::vector<CudaWeight> weights;
    for (size_t i = 0; i < copies; ++i) {
      const auto* tiles = static_cast<const uint8_t*>(device_.Normals(bytes / 2, DType::kBF16));
      weights.emplace_back(shape.n, shape.k, bytes,
                           std::vector<TiledRows>{{type, 0, shape.n, tiles}});
    }
    const void* x = device_.Normals(static_cast<size_t>(rows.back()) * shape.k, DType::kBF16);
    auto* y = device_.Floats(static_cast<size_t>(rows.back()) * shape.n);
    const std::string name(DTypeName(type));
    std::printf("| %s |", name.c_str());
    for (const int m : rows) {
      size_t next = 0;
      const double seconds = device_.Time([&] {
        const CudaWeight& weight = weights[next++ % weights.size()];
        return device_->Matmul(
            {.x = x, .x_dtype = DType::kBF16, .m = m, .weight = &weight, .y = y});
      });
      std::printf(" %.1f |", seconds * 1e6);
      Write("matmul_blocks", {{"rows", m},
                              {"type", name},
                              {"n", shape.n},
                              {"k", shape.k},
                              {"seconds", seconds},
                              {"share_of_copy", ShareOfCopy(static_cast<double>(bytes), seconds)}});
    }
    std::printf("\n");
    device_.FreeAll();
  }

  double ShareOfCopy(double bytes, double seconds) const {
    return copy_ > 0 ? bytes / seconds / copy_ : NAN;
  }

  void MeasureDecode() {
    using Shapes = std::vector<std::pair<int, int>>;
    Shapes shapes = options_.quick
                        ? Shapes{{1, 300}, {3, 40}}
                        : Shapes{{64, 512},  {64, 1024}, {64, 2048}, {256, 205}, {256, 512},
                                 {16, 1024}, {1, 1024},  {1, 8192},  {1, 131072}};
    if (std::pair<int, int> shape;
        std::sscanf(options_.decode.c_str(), "%dx%d", &shape.first, &shape.second) == 2)
      shapes = {shape};
    std::printf(
        "| decode attention | us, full | share of copy | cold | us, h2o | scores add | cold "
        "|\n|---|---|---|---|---|---|---|\n");
    for (const auto& [rows, length] : shapes) MeasureDecode(rows, length);
    std::printf("\n");
  }

  struct Timed {
    double warm = 0, cold = 0;
  };
  Timed MeasureRule(DecodeWorld* world, const char* variant, const DecodeRule& rule, int rows,
                    int length) {
    const Device::Operation operation = world->Operation(&device_, rule);
    const Timed timed = {device_.Time(operation), device_.TimeCold(operation)};
    const double entries = static_cast<double>(rows) * kKvHeads * length;
    const double kv_bytes = entries * 2 * kHeadDim * 2;
    const double state_bytes =
        rule.scored ? 12 * entries : 0;  // positions, scores read and written
    Write("decode_attention", {{"variant", std::string(variant)},
                               {"batch", rows},
                               {"length", length},
                               {"seconds", timed.warm},
                               {"cold_seconds", timed.cold},
                               {"kv_bytes", kv_bytes},
                               {"share_of_copy", ShareOfCopy(kv_bytes + state_bytes, timed.warm)}});
    return timed;
  }

  void MeasureDecode(int rows, int length) {
    DecodeWorld world(&device_, rows, length, options_.quick);
    const Timed full = MeasureRule(&world, "full", {}, rows, length);
    const Timed h2o = MeasureRule(&world, "h2o", {.scored = true}, rows, length);
    const double bytes = static_cast<double>(rows) * kKvHeads * length * 4 * kHeadDim;
    std::printf("| %d x %d | %.1f | %.2f | %.1f | %.1f | %+.1f %% | %.1f |\n", rows, length,
                full.warm * 1e6, ShareOfCopy(bytes, full.warm), full.cold * 1e6, h2o.warm * 1e6,
                (h2o.warm / full.warm - 1) * 100, h2o.cold * 1e6);
    std::fflush(stdout);
    device_.FreeAll();
  }

  void MeasurePrompts() {
    std::printf(
        "| prompt attention, tokens | us | TFLOP/s | share of product | column sums add | echo "
        "adds "
        "|\n|---|---|---|---|---|---|\n");
    std::vector<int> prompts = {1024, 2048, 4096, 8192, 16384};
    if (options_.quick) prompts = {96};
    if (const int tokens = std::atoi(options_.prompt.c_str()); tokens > 0) prompts = {tokens};
    for (const int tokens : prompts) MeasurePrompt(tokens);
    std::printf("\n");
  }

  void MeasurePrompt(int n) {
    PrefillAttentionArgs args = MakePrompt(device_, n, true);
    const auto attend = [&] { return device_->PrefillAttention(args); };
    const double plain = device_.Time(attend);
    AddStatistic(&args, 0, ColumnStatistic::Kind::kSum);
    const double summed = device_.Time(attend);
    // As many queries positioned after the whole prompt, for statistics only.
    args.out = nullptr;
    args.first_position = (n + kQueryTile - 1) / kQueryTile * kQueryTile;
    args.end_key = n;
    AddStatistic(&args, 1, ColumnStatistic::Kind::kMax);
    const double echo = device_.Time(attend);
    const double flops = 2.0 * 2.0 * kHeads * kHeadDim * (0.5 * n * (n + 1.0)) / plain;
    std::printf("| %d | %.0f | %.1f | %.2f | %+.0f %% | %+.0f %% |\n", n, plain * 1e6,
                flops * 1e-12, product_ > 0 ? flops / product_ : NAN, (summed / plain - 1) * 100,
                echo / plain * 100);
    std::fflush(stdout);
    Write("prefill_attention", {{"tokens", n},
                                {"seconds", plain},
                                {"flops", flops},
                                {"share_of_matmul", product_ > 0 ? flops / product_ : NAN},
                                {"seconds_with_sums", summed},
                                {"echo_seconds", echo}});
    device_.FreeAll();
  }

  void AddStatistic(PrefillAttentionArgs* args, int index, ColumnStatistic::Kind kind) {
    ColumnStatistic& statistic = args->statistics[index];
    statistic.kind = kind;
    statistic.out = device_.Allocate<float>(static_cast<size_t>(kKvHeads) * args->num_queries);
    statistic.stride = args->num_queries;
  }

  const Options& options_;
  Device device_;
  MeasurementLog log_;
  double copy_ = 0.0;     // bytes per second, read and written; 0: not measured
  double product_ = 0.0;  // operations per second of the largest product; 0: not measured
};

Options Parse(int argc, char** argv) {
  Options options;
  // As in the daemon: another shared object replaces the backend's.
  if (const char* module = std::getenv("HYDRANT_CUDA_MODULE"); module != nullptr)
    options.module = module;
  if (const char* module = std::getenv("HYDRANT_CEILINGS_MODULE"); module != nullptr)
    options.ceilings = module;
  const std::array<std::pair<const char*, std::string*>, 7> texts = {
      {{"--module", &options.module},
       {"--ceilings", &options.ceilings},
       {"--only", &options.only},
       {"--decode", &options.decode},
       {"--prompt", &options.prompt},
       {"--name", &options.name},
       {"--json", &options.json}}};
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--quick") == 0) {
      options.quick = true;
      continue;
    }
    const auto text = std::find_if(texts.begin(), texts.end(), [&](const auto& t) {
      return std::strcmp(t.first, argv[i]) == 0;
    });
    if (text == texts.end() || ++i == argc)
      Fail(std::string("unknown option or no value: ") + argv[std::min(i, argc - 1)] +
           " (see the head of tests/kernels/device_probe.cc)");
    *text->second = argv[i];
  }
  return options;
}

}  // namespace
}  // namespace hydrant

int main(int argc, char** argv) {
  const hydrant::Options options = hydrant::Parse(argc, argv);
  hydrant::Probe(options).Run();
}
