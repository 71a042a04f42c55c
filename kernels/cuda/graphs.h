// Recorded CUDA graphs, one per caller's key. Not thread-safe.
//
// A graph holds the addresses that it was recorded with. When the scratch memory grows, its
// addresses change, and all graphs are dropped and recorded again.
#ifndef HYDRANT_KERNELS_CUDA_GRAPHS_H_
#define HYDRANT_KERNELS_CUDA_GRAPHS_H_

#include <cuda_runtime.h>

#include <cstdint>
#include <unordered_map>

namespace hydrant::cuda {

class Graphs {
 public:
  Graphs() = default;
  Graphs(const Graphs&) = delete;
  Graphs& operator=(const Graphs&) = delete;
  ~Graphs() { Destroy(); }  // REQUIRES: no graph is running

  // `work_space` changes whenever a scratch address may have changed.
  cudaError_t Replay(uint64_t key, uint64_t work_space, cudaStream_t stream, bool* replayed) {
    *replayed = false;
    if (work_space != work_space_) Forget(stream);
    work_space_ = work_space;
    const auto found = graphs_.find(key);
    if (found == graphs_.end() || found->second == nullptr) return cudaSuccess;
    *replayed = true;
    return cudaGraphLaunch(found->second, stream);
  }

  // The first call for a key runs the operations without capturing them.
  cudaError_t Begin(uint64_t key, cudaStream_t stream) {
    if (graphs_.size() >= kLimit && !graphs_.contains(key)) Forget(stream);
    recording_ = !graphs_.emplace(key, nullptr).second;
    key_ = key;
    if (!recording_) return cudaSuccess;
    // Relaxed: other threads may allocate during the capture.
    return cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed);
  }

  cudaError_t End(uint64_t work_space, cudaStream_t stream) {
    if (!recording_) {
      // The operations may have grown the scratch: older graphs are stale, this key is not.
      if (work_space != work_space_) Forget(stream);
      work_space_ = work_space;
      graphs_.emplace(key_, nullptr);
      return cudaSuccess;
    }
    recording_ = false;
    cudaGraph_t graph = nullptr;
    cudaError_t error = cudaStreamEndCapture(stream, &graph);
    cudaGraphExec_t executable = nullptr;
    if (error == cudaSuccess) error = cudaGraphInstantiate(&executable, graph, 0);
    if (graph != nullptr) cudaGraphDestroy(graph);
    if (error != cudaSuccess) return error;
    graphs_[key_] = executable;
    return cudaGraphLaunch(executable, stream);
  }

 private:
  static constexpr size_t kLimit = 256;  // each takes some hundred KiB

  // Waits first: steps overlap, so a graph may be running.
  void Forget(cudaStream_t stream) {
    if (!graphs_.empty()) (void)cudaStreamSynchronize(stream);  // errors are reported later
    Destroy();
  }
  void Destroy() {
    for (const auto& [key, graph] : graphs_) {
      if (graph != nullptr) cudaGraphExecDestroy(graph);
    }
    graphs_.clear();
  }

  std::unordered_map<uint64_t, cudaGraphExec_t> graphs_;  // null: has run once, not captured
  uint64_t work_space_ = 0;
  uint64_t key_ = 0;
  bool recording_ = false;
};

}  // namespace hydrant::cuda

#endif  // HYDRANT_KERNELS_CUDA_GRAPHS_H_
