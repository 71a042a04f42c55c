// The library half of the emulated CUDA runtime.
#include <cuda_runtime.h>

#include <cstdio>
#include <map>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "kernels/cuda/ptx.cuh"

namespace hydrant::emulation {
namespace {

constexpr size_t kMostSharedBytes = 227 * 1024;  // of a block, compute capability 9.0

// HYDRANT_EMULATION_<name>: what a test wants this device to be like.
uint64_t Setting(const char* name, uint64_t otherwise) {
  const char* text = std::getenv((std::string("HYDRANT_EMULATION_") + name).c_str());
  return text != nullptr ? std::strtoull(text, nullptr, 10) : otherwise;
}
size_t TotalBytes() {
  static const size_t bytes = Setting("MEMORY", uint64_t{8} << 30);
  return bytes;
}

// What cudaMalloc has given, for cudaMemGetInfo. One thread drives a device at a time.
struct AllocationTable {
  std::map<void*, size_t> sizes;
  size_t bytes = 0;
};
AllocationTable& Allocations() {
  static auto& table = *new AllocationTable;
  return table;
}

// HYDRANT_EMULATION_SEED picks the order of blocks and threads; it is printed once.
uint64_t Seed() {
  static const uint64_t seed = [] {
    const uint64_t value = Setting("SEED", std::random_device{}());
    std::fprintf(stderr, "cuda emulation: HYDRANT_EMULATION_SEED=%llu\n",
                 static_cast<unsigned long long>(value));
    return value;
  }();
  return seed;
}

std::vector<std::function<cudaError_t()>>* captured = nullptr;  // null: nothing is captured

// After so many kernels every one fails, as they do on a device whose context is lost.
bool IsLost() {
  static const uint64_t last = Setting("LAST_LAUNCH", UINT64_MAX);
  static uint64_t launches = 0;
  return ++launches > last;
}

thread_local uint64_t launches = 0;
thread_local std::vector<unsigned char> dynamic_shared;

}  // namespace

void* DynamicSharedMemory() { return dynamic_shared.data(); }

cudaError_t Enqueue(std::function<cudaError_t()> operation) {
  if (captured == nullptr) return operation();
  captured->push_back(std::move(operation));
  return cudaSuccess;
}

cudaError_t RunGrid(dim3 grid, dim3 block, size_t shared_bytes, const std::function<void()>& body) {
  const uint64_t threads = uint64_t{block.x} * block.y * block.z;
  const uint64_t blocks = uint64_t{grid.x} * grid.y * grid.z;
  if (threads == 0 || threads > 1024 || blocks == 0 || grid.y > 65535 || grid.z > 65535 ||
      shared_bytes > kMostSharedBytes)
    return cudaErrorInvalidValue;
  if (IsLost()) return cudaErrorLaunchFailure;
  std::mt19937_64 random(Seed() + ++launches);
  std::vector<uint64_t> order(blocks);
  std::iota(order.begin(), order.end(), uint64_t{0});
  std::shuffle(order.begin(), order.end(), random);
  gridDim = grid;
  blockDim = block;
  for (const uint64_t b : order) {
    // Fresh memory for each block: what one left is not there for the next.
    dynamic_shared.assign(shared_bytes, 0xA5);
    blockIdx = {static_cast<unsigned>(b % grid.x), static_cast<unsigned>(b / grid.x % grid.y),
                static_cast<unsigned>(b / grid.x / grid.y)};
    RunBlock(static_cast<int>(threads), random(), [&](int) { body(); });
  }
  return cudaSuccess;
}

}  // namespace hydrant::emulation

const char* cudaGetErrorName(cudaError_t error) {
  return error == cudaSuccess                   ? "cudaSuccess"
         : error == cudaErrorInvalidValue       ? "cudaErrorInvalidValue"
         : error == cudaErrorMemoryAllocation   ? "cudaErrorMemoryAllocation"
         : error == cudaErrorInsufficientDriver ? "cudaErrorInsufficientDriver"
         : error == cudaErrorNoDevice           ? "cudaErrorNoDevice"
                                                : "cudaErrorLaunchFailure";
}
const char* cudaGetErrorString(cudaError_t error) { return cudaGetErrorName(error); }

cudaError_t cudaGetDeviceCount(int* count) {
  *count = 1;
  return static_cast<cudaError_t>(hydrant::emulation::Setting("DEVICE_ERROR", cudaSuccess));
}
cudaError_t cudaSetDevice(int device) { return device == 0 ? cudaSuccess : cudaErrorInvalidValue; }
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
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
      *value = static_cast<int>(hydrant::emulation::kMostSharedBytes);
      break;
  }
  return cudaSuccess;
}
cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  *total = hydrant::emulation::TotalBytes();
  *free = *total - hydrant::emulation::Allocations().bytes;
  return cudaSuccess;
}

cudaError_t cudaMalloc(void** pointer, size_t bytes) {
  *pointer = nullptr;
  if (hydrant::emulation::captured != nullptr) return cudaErrorStreamCaptureUnsupported;
  if (bytes == 0) return cudaSuccess;
  hydrant::emulation::AllocationTable& table = hydrant::emulation::Allocations();
  if (bytes > hydrant::emulation::TotalBytes() - table.bytes) return cudaErrorMemoryAllocation;
  // A device's allocations start at multiples of 256 and hold whatever was there.
  if (posix_memalign(pointer, 256, bytes) != 0) return cudaErrorMemoryAllocation;
  std::memset(*pointer, 0xA5, std::min(bytes, size_t{1} << 20));
  table.sizes[*pointer] = bytes;
  table.bytes += bytes;
  return cudaSuccess;
}
cudaError_t cudaFree(void* pointer) {
  hydrant::emulation::AllocationTable& table = hydrant::emulation::Allocations();
  if (const auto it = table.sizes.find(pointer); it != table.sizes.end()) {
    table.bytes -= it->second;
    table.sizes.erase(it);
  }
  std::free(pointer);
  return cudaSuccess;
}
cudaError_t cudaMallocHost(void** pointer, size_t bytes) { return cudaMalloc(pointer, bytes); }
cudaError_t cudaFreeHost(void* pointer) { return cudaFree(pointer); }
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind,
                            cudaStream_t) {
  return hydrant::emulation::Enqueue([=] {
    if (bytes > 0) std::memcpy(to, from, bytes);
    return cudaSuccess;
  });
}
cudaError_t cudaMemsetAsync(void* at, int value, size_t bytes, cudaStream_t) {
  return hydrant::emulation::Enqueue([=] {
    if (bytes > 0) std::memset(at, value, bytes);
    return cudaSuccess;
  });
}
cudaError_t cudaStreamCreate(cudaStream_t* stream) {
  *stream = nullptr;
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaStreamSynchronize(cudaStream_t) {
  return hydrant::emulation::captured == nullptr ? cudaSuccess : cudaErrorStreamCaptureUnsupported;
}

// A graph is the list of what was enqueued; its executable form is another copy.
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
  for (const auto& operation : executable->operations) {
    if (const cudaError_t error = operation(); error != cudaSuccess) return error;
  }
  return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete graph;
  return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable) {
  return cudaGraphDestroy(executable);
}
cudaError_t cudaGetLastError() { return cudaSuccess; }
