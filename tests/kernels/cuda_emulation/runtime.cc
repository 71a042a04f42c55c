// Library part of the emulated CUDA runtime. A program's static objects may call it at exit, after
// the destructors of this module's static objects: the emulation's files keep their state in objects
// that are never destroyed.
#include <cuda_runtime.h>

#include <cstdio>
#include <deque>
#include <map>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "kernels/cuda/ptx.cuh"
#include "tests/kernels/cuda_emulation/counts.h"
#include "tests/kernels/cuda_emulation/tracing.h"

namespace hydrant::emulation {
namespace {

constexpr size_t kMaxSharedBytes = 227 * 1024;  // per block, compute capability 9.0

// HYDRANT_EMULATION_<name>: a test's setting of the emulated device.
uint64_t Setting(const char* name, uint64_t otherwise) {
  const char* text = std::getenv((std::string("HYDRANT_EMULATION_") + name).c_str());
  return text != nullptr ? std::strtoull(text, nullptr, 10) : otherwise;
}
size_t TotalBytes() {
  static const size_t bytes = Setting("MEMORY", uint64_t{8} << 30);
  return bytes;
}

// Device memory held by other processes: from the start; optionally all remaining memory after a
// given number of kernels.
size_t TakenBytes() {
  static const size_t bytes = Setting("TAKEN", 0);
  return bytes;
}

// Allocations of cudaMalloc, for cudaMemGetInfo, and of cudaMallocHost, to recognize pinned memory.
// One thread drives a device at a time.
struct AllocationTable {
  std::map<const void*, size_t> sizes;
  size_t bytes = 0;

  bool Holds(const void* at) const {
    auto it = sizes.upper_bound(at);
    if (it == sizes.begin()) return false;
    --it;
    return static_cast<const char*>(at) < static_cast<const char*>(it->first) + it->second;
  }
  cudaError_t Allocate(void** pointer, size_t size) {
    // Device allocations are aligned to 256 bytes and uninitialised.
    if (posix_memalign(pointer, 256, size) != 0) return cudaErrorMemoryAllocation;
    std::memset(*pointer, 0xA5, std::min(size, size_t{1} << 20));
    sizes[*pointer] = size;
    bytes += size;
    return cudaSuccess;
  }
  void Free(void* pointer) {
    if (const auto it = sizes.find(pointer); it != sizes.end()) {
      bytes -= it->second;
      sizes.erase(it);
    }
    std::free(pointer);
  }
};
AllocationTable& Allocations() {
  static auto& table = *new AllocationTable;
  return table;
}
AllocationTable& PinnedAllocations() {
  static auto& table = *new AllocationTable;
  return table;
}

// HYDRANT_EMULATION_SEED sets the random order of blocks and threads; it is printed once.
uint64_t Seed() {
  static const uint64_t seed = [] {
    const uint64_t value = Setting("SEED", std::random_device{}());
    std::fprintf(stderr, "cuda emulation: HYDRANT_EMULATION_SEED=%llu\n",
                 static_cast<unsigned long long>(value));
    return value;
  }();
  return seed;
}

std::vector<std::function<cudaError_t()>>* captured = nullptr;  // null: no capture

// Enqueued operations that have not run. The first failure makes the device fail for good.
struct Stream {
  std::deque<std::function<cudaError_t()>> waiting = {};
  uint64_t enqueued = 0;
  uint64_t ran = 0;
  cudaError_t fault = cudaSuccess;
  std::mt19937_64 random = std::mt19937_64(1);

  cudaError_t RunUntil(uint64_t count) {
    while (ran < count) {
      const std::function<cudaError_t()> operation = std::move(waiting.front());
      waiting.pop_front();
      ++ran;
      if (fault == cudaSuccess) fault = operation();
    }
    return fault;
  }
  cudaError_t RunAll() { return RunUntil(enqueued); }
};
Stream& TheStream() {
  static auto& stream = *new Stream;
  return stream;
}

// After this many kernels every kernel fails, as on a device with a lost context.
bool IsLost() {
  static const uint64_t last = Setting("LAST_LAUNCH", UINT64_MAX);
  static uint64_t launches = 0;
  return ++launches > last;
}

uint64_t launches = 0;
auto& dynamic_shared = *new std::vector<unsigned char>;

size_t FreeBytes() {
  static const uint64_t last = Setting("TAKEN_AFTER", UINT64_MAX);
  const size_t held = Allocations().bytes + TakenBytes();
  return launches >= last || held > TotalBytes() ? 0 : TotalBytes() - held;
}

}  // namespace

void* DynamicSharedMemory() { return dynamic_shared.data(); }

Counts& TheCounts() {
  static auto& counts = *new Counts;
  return counts;
}
bool IsDeviceMemory(const void* at) { return Allocations().Holds(at); }
int LateWrites() {
  static const int late = static_cast<int>(Setting("LATE_WRITES", 0));
  return late;
}

cudaError_t Enqueue(std::function<cudaError_t()> operation) {
  if (captured != nullptr) {
    captured->push_back(std::move(operation));
    return cudaSuccess;
  }
  Stream& stream = TheStream();
  stream.waiting.push_back(std::move(operation));
  ++stream.enqueued;
  // The device is sometimes far behind, sometimes not at all.
  constexpr int kSeldom = 64;
  return stream.random() % kSeldom == 0 ? stream.RunAll() : stream.fault;
}

cudaError_t CheckGrid(dim3 grid, dim3 block, size_t shared_bytes) {
  const uint64_t threads = uint64_t{block.x} * block.y * block.z;
  const uint64_t blocks = uint64_t{grid.x} * grid.y * grid.z;
  const bool fits = threads > 0 && threads <= 1024 && blocks > 0 && grid.y <= 65535 &&
                    grid.z <= 65535 && shared_bytes <= kMaxSharedBytes;
  return fits ? cudaSuccess : cudaErrorInvalidValue;
}

cudaError_t RunGrid(dim3 grid, dim3 block, size_t shared_bytes, const std::function<void()>& body) {
  const uint64_t threads = uint64_t{block.x} * block.y * block.z;
  const uint64_t blocks = uint64_t{grid.x} * grid.y * grid.z;
  if (IsLost()) return cudaErrorLaunchFailure;
  ++TheCounts().kernels;
  std::mt19937_64 random(Seed() + ++launches);
  std::vector<uint64_t> order(blocks);
  std::iota(order.begin(), order.end(), uint64_t{0});
  std::shuffle(order.begin(), order.end(), random);
  gridDim = grid;
  blockDim = block;
  for (const uint64_t b : order) {
    // Fresh memory for each block: nothing survives from the previous block.
    dynamic_shared.assign(shared_bytes, 0xA5);
    blockIdx = {static_cast<unsigned>(b % grid.x), static_cast<unsigned>(b / grid.x % grid.y),
                static_cast<unsigned>(b / grid.x / grid.y)};
    BeginBlock();
    RunBlock(static_cast<int>(threads), random(), [&](int) { body(); });
    EndBlock();
  }
  EndGrid();
  return cudaSuccess;
}

namespace {
uint64_t waits = 0;  // by the running kernel's threads
}  // namespace

void NoteWait() {
  ++waits;
  NoteThreadWaits();
}

cudaError_t RunOverlappedGrid(dim3 grid, dim3 block, size_t shared_bytes,
                              const std::function<void()>& body) {
  waits = 0;
  BeginOverlappedGrid();
  const cudaError_t error = RunGrid(grid, block, shared_bytes, body);
  const bool in_time = EndOverlappedGrid();
  if (error != cudaSuccess) return error;
  if (!in_time) {
    std::fputs("cuda emulation: a thread does not wait for the kernel before\n", stderr);
    return cudaErrorLaunchFailure;
  }
  const uint64_t threads = uint64_t{grid.x} * grid.y * grid.z * block.x * block.y * block.z;
  if (waits == threads) return cudaSuccess;
  std::fprintf(stderr, "cuda emulation: %llu of %llu threads wait for the kernel before theirs\n",
               static_cast<unsigned long long>(waits), static_cast<unsigned long long>(threads));
  return cudaErrorLaunchFailure;
}

}  // namespace hydrant::emulation

hydrant::emulation::Counts* HydrantEmulationCounts() { return &hydrant::emulation::TheCounts(); }

const char* cudaGetErrorName(cudaError_t error) {
  switch (error) {
#define HYDRANT_NAME(name) \
  case name:               \
    return #name;
    HYDRANT_NAME(cudaSuccess)
    HYDRANT_NAME(cudaErrorInvalidValue)
    HYDRANT_NAME(cudaErrorMemoryAllocation)
    HYDRANT_NAME(cudaErrorInsufficientDriver)
    HYDRANT_NAME(cudaErrorDevicesUnavailable)
    HYDRANT_NAME(cudaErrorInvalidDeviceFunction)
    HYDRANT_NAME(cudaErrorNoDevice)
    HYDRANT_NAME(cudaErrorNoKernelImageForDevice)
    HYDRANT_NAME(cudaErrorECCUncorrectable)
    HYDRANT_NAME(cudaErrorUnsupportedPtxVersion)
    HYDRANT_NAME(cudaErrorIllegalAddress)
    HYDRANT_NAME(cudaErrorLaunchFailure)
    HYDRANT_NAME(cudaErrorSystemNotReady)
    HYDRANT_NAME(cudaErrorSystemDriverMismatch)
    HYDRANT_NAME(cudaErrorCompatNotSupportedOnDevice)
    HYDRANT_NAME(cudaErrorStreamCaptureUnsupported)
#undef HYDRANT_NAME
  }
  return "an error without a name";
}
const char* cudaGetErrorString(cudaError_t error) { return cudaGetErrorName(error); }

cudaError_t cudaGetDeviceCount(int* count) {
  *count = 1;
  return static_cast<cudaError_t>(hydrant::emulation::Setting("DEVICE_ERROR", cudaSuccess));
}
cudaError_t cudaSetDevice(int device) {
  if (device != 0) return cudaErrorInvalidValue;
  return static_cast<cudaError_t>(hydrant::emulation::Setting("START_ERROR", cudaSuccess));
}
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes*, void (*)()) {
  return static_cast<cudaError_t>(hydrant::emulation::Setting("CODE_ERROR", cudaSuccess));
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int) {
  std::snprintf(properties->name, sizeof(properties->name), "emulated device");
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  switch (attribute) {
    case cudaDevAttrMultiProcessorCount:
      *value = 4;
      break;
    case cudaDevAttrComputeCapabilityMajor:
      *value = static_cast<int>(hydrant::emulation::Setting("CAPABILITY", 9));
      break;
    case cudaDevAttrComputeCapabilityMinor:
      *value = 0;
      break;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor:
      *value = 228 * 1024;
      break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
      *value = static_cast<int>(hydrant::emulation::kMaxSharedBytes);
      break;
  }
  return cudaSuccess;
}
cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  *total = hydrant::emulation::TotalBytes();
  *free = hydrant::emulation::FreeBytes();
  return cudaSuccess;
}

cudaError_t cudaMalloc(void** pointer, size_t bytes) {
  *pointer = nullptr;
  if (hydrant::emulation::captured != nullptr) return cudaErrorStreamCaptureUnsupported;
  if (bytes == 0) return cudaSuccess;
  if (bytes > hydrant::emulation::FreeBytes()) return cudaErrorMemoryAllocation;
  return hydrant::emulation::Allocations().Allocate(pointer, bytes);
}
cudaError_t cudaFree(void* pointer) {
  const cudaError_t error = hydrant::emulation::TheStream().RunAll();
  hydrant::emulation::Allocations().Free(pointer);
  return error;
}
cudaError_t cudaMallocHost(void** pointer, size_t bytes) {
  return hydrant::emulation::PinnedAllocations().Allocate(pointer, bytes);
}
cudaError_t cudaFreeHost(void* pointer) {
  const cudaError_t error = hydrant::emulation::TheStream().RunAll();
  hydrant::emulation::PinnedAllocations().Free(pointer);
  return error;
}
static void CountCopy(size_t bytes) {
  ++hydrant::emulation::TheCounts().copies;
  hydrant::emulation::TheCounts().copied_bytes += bytes;
}
// Pageable host memory is read at once, or waited for.
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t) {
  const hydrant::emulation::AllocationTable& pinned = hydrant::emulation::PinnedAllocations();
  if (bytes == 0) return cudaSuccess;
  if (kind == cudaMemcpyHostToDevice && !pinned.Holds(from)) {
    const auto* bytes_of = static_cast<const unsigned char*>(from);
    return hydrant::emulation::Enqueue(
        [to, taken = std::vector<unsigned char>(bytes_of, bytes_of + bytes)] {
          CountCopy(taken.size());
          std::memcpy(to, taken.data(), taken.size());
          return cudaSuccess;
        });
  }
  const cudaError_t error = hydrant::emulation::Enqueue([=] {
    CountCopy(bytes);
    std::memcpy(to, from, bytes);
    return cudaSuccess;
  });
  const bool waits = kind == cudaMemcpyDeviceToHost && !pinned.Holds(to);
  return waits ? hydrant::emulation::TheStream().RunAll() : error;
}
cudaError_t cudaMemsetAsync(void* at, int value, size_t bytes, cudaStream_t) {
  return hydrant::emulation::Enqueue([=] {
    CountCopy(bytes);
    if (bytes > 0) std::memset(at, value, bytes);
    return cudaSuccess;
  });
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  *stream = nullptr;
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaStreamSynchronize(cudaStream_t) {
  if (hydrant::emulation::captured != nullptr) return cudaErrorStreamCaptureUnsupported;
  const cudaError_t error = hydrant::emulation::TheStream().RunAll();
  hydrant::emulation::ForgetWrites();
  return error;
}

struct EmulatedEvent {
  uint64_t after = 0;  // number of stream operations before it
};
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  *event = new EmulatedEvent;
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t) {
  event->after = hydrant::emulation::TheStream().enqueued;
  return hydrant::emulation::TheStream().fault;
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  return hydrant::emulation::TheStream().RunUntil(event->after);
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  return cudaSuccess;
}

// A graph is the list of enqueued operations; its executable form is another copy.
struct EmulatedGraph {
  std::vector<std::function<cudaError_t()>> operations;
};
cudaError_t cudaStreamBeginCapture(cudaStream_t, cudaStreamCaptureMode) {
  if (hydrant::emulation::captured != nullptr) return cudaErrorStreamCaptureUnsupported;
  hydrant::emulation::captured = new std::vector<std::function<cudaError_t()>>;
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t, cudaGraph_t* graph) {
  if (hydrant::emulation::captured == nullptr) return cudaErrorInvalidValue;
  *graph = new EmulatedGraph{std::move(*hydrant::emulation::captured)};
  delete std::exchange(hydrant::emulation::captured, nullptr);
  return cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* executable, cudaGraph_t graph,
                                 unsigned long long) {
  *executable = new EmulatedGraph(*graph);
  return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t) {
  // The graph may be destroyed before its operations run.
  return hydrant::emulation::Enqueue([operations = executable->operations] {
    for (const auto& operation : operations) {
      if (const cudaError_t error = operation(); error != cudaSuccess) return error;
    }
    return cudaSuccess;
  });
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete graph;
  return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable) {
  return cudaGraphDestroy(executable);
}
cudaError_t cudaGetLastError() { return cudaSuccess; }
