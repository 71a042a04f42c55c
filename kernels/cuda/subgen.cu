// One block per head inserts tokens one after another; for each token, warps divide the clusters to
// measure and the samples. The state stays in the pages throughout.
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/nearest.cuh"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/page_row.cuh"
#include "kernels/ops/subgen.h"
#include "kernels/victim.h"

namespace hydrant::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarpSize;

// The block's work on one head. Every thread holds the same numbers; every method is called by all
// threads unless noted.
class Head {
 public:
  // key, value: [head_dim] in shared memory, the current token. shared: [kWarps].
  __device__ Head(const KvPages& pages, const PageIds* blocks, const SubGenRule& rule, int layer,
                  int head, float* key, float* value, Nearest* shared)
      : pages_(pages),
        blocks_(blocks),
        rule_(rule),
        value_key_(SubGenKey(rule, SubGenPurpose::kValueSample, layer, head)),
        cluster_key_(SubGenKey(rule, SubGenPurpose::kClusterSample, layer, head)),
        merge_key_(SubGenKey(rule, SubGenPurpose::kMerge, layer, head)),
        thread_(static_cast<int>(threadIdx.x)),
        warp_(thread_ / kWarpSize),
        lane_(thread_ % kWarpSize),
        key_(key),
        value_(value),
        shared_(shared) {}

  // Starts with no samples and no clusters. One warp per entry.
  __device__ void Begin() {
    mu_ = 0.0f;
    radius_squared_ = rule_.radius_squared;
    for (int entry = rule_.ExactEntries() + warp_; entry < rule_.Capacity(); entry += kWarps) {
      for (int i = lane_; i < dim(); i += kWarpSize) {
        Store(pages_.keys, entry, i, 0.0f);
        Store(pages_.values, entry, i, 0.0f);
      }
      if (lane_ != 0) continue;
      pages_.positions[Index(entry)] = -1;
      pages_.scores[State(entry)] = 0.0f;
    }
    __syncthreads();
  }

  __device__ void Load() {
    mu_ = pages_.scores[State(kSubGenMuEntry)];
    radius_squared_ = pages_.scores[State(kSubGenRadiusEntry)];
    __syncthreads();
  }

  __device__ void Stream(const float* k, const float* v, int32_t position) {
    for (int i = thread_; i < dim(); i += kThreads) {
      key_[i] = Rounded(k[i]);
      value_[i] = Rounded(v[i]);
    }
    StreamLoaded(position);
  }
  __device__ void StreamEntry(int32_t entry) {
    for (int i = thread_; i < dim(); i += kThreads) {
      key_[i] = LoadRowElement(pages_.layout.dtype, pages_.keys, Index(entry) * dim() + i);
      value_[i] = LoadRowElement(pages_.layout.dtype, pages_.values, Index(entry) * dim() + i);
    }
    StreamLoaded(pages_.positions[Index(entry)]);
  }

  // Called by one warp.
  __device__ void WriteExact(const float* k, const float* v, int32_t position) const {
    const int32_t entry = rule_.ExactEntry(position);
    for (int i = lane_; i < dim(); i += kWarpSize) {
      Store(pages_.keys, entry, i, k[i]);
      Store(pages_.values, entry, i, v[i]);
    }
    if (lane_ != 0) return;
    pages_.positions[Index(entry)] = position;
    pages_.scores[State(entry)] = 0.0f;
    SetLogWeights(entry, 0.0f, 0.0f);
  }

  // Stores the state in the pages.
  __device__ void Finish() {
    __syncthreads();
    if (thread_ == 0) {
      pages_.scores[State(kSubGenMuEntry)] = mu_;
      pages_.scores[State(kSubGenRadiusEntry)] = radius_squared_;
    }
    for (int j = thread_; j < rule_.value_samples; j += kThreads) {
      const int32_t entry = rule_.ValueEntry(j);
      const float weight = pages_.scores[State(entry)];
      const float share = mu_ / (static_cast<float>(rule_.value_samples) * weight);
      SetLogWeights(entry, weight > 0.0f ? logf(share) : -INFINITY, -INFINITY);
    }
    const int samples = rule_.max_clusters * rule_.cluster_samples;
    for (int j = thread_; j < samples; j += kThreads) {
      const float count = Count(j / rule_.cluster_samples);
      const float share = count / static_cast<float>(rule_.cluster_samples);
      SetLogWeights(rule_.ClusterEntry(0) + j, -INFINITY, count > 0.0f ? logf(share) : -INFINITY);
    }
  }

 private:
  __device__ int dim() const { return pages_.layout.head_dim; }
  __device__ size_t Index(int32_t entry) const { return PageIndex(pages_.layout, blocks_, entry); }
  __device__ size_t State(int32_t entry) const { return StateIndex(pages_.layout, blocks_, entry); }
  __device__ void Store(void* rows, int32_t entry, int i, float element) const {
    StoreRowElement(pages_.layout.dtype, rows, Index(entry) * dim() + i, element);
  }
  __device__ float Rounded(float element) const {
    return RoundRowElement(pages_.layout.dtype, element);
  }
  __device__ void SetLogWeights(int32_t entry, float numerator, float denominator) const {
    float* log_weights = LogWeightsOf(pages_, blocks_, entry);
    log_weights[0] = numerator;
    log_weights[1] = denominator;
  }
  // n_i of a cluster; negative inside Merge() while the cluster is being absorbed.
  __device__ float& Count(int cluster) const {
    return pages_.scores[State(rule_.ClusterEntry(cluster))];
  }
  __device__ float CentreElement(int cluster, int i) const {
    return LoadRowElement(pages_.layout.dtype, pages_.values,
                          Index(rule_.ClusterEntry(cluster)) * dim() + i);
  }

  __device__ void StreamLoaded(int32_t position) {
    __syncthreads();
    SampleValue(position);
    SampleKey(position);
    __syncthreads();
  }

  // Called by one warp: the sum over elements i of difference(i) squared; NaN becomes infinity.
  template <typename Difference>
  __device__ float SumOfSquares(Difference difference) const {
    float sum = 0.0f;
    for (int i = lane_; i < dim(); i += kWarpSize) {
      const float x = difference(i);
      sum = fmaf(x, x, sum);
    }
    sum = WarpSum(sum);
    return sum == sum ? sum : INFINITY;
  }
  __device__ float DistanceOfKey(int cluster) const {
    return SumOfSquares([&](int i) { return key_[i] - CentreElement(cluster, i); });
  }
  __device__ float DistanceOfCentres(int a, int b) const {
    return SumOfSquares([&](int i) { return CentreElement(a, i) - CentreElement(b, i); });
  }
  __device__ bool IsWithin(float distance_squared) const {
    return distance_squared <= radius_squared_;
  }

  // Calls replace(sample) with all lanes of a warp for each sample with takes(sample), which a
  // single lane decides. A sample always belongs to the same warp.
  template <typename Takes, typename Replace>
  __device__ void ForTaken(int samples, Takes takes, Replace replace) const {
    for (int base = warp_ * kWarpSize; base < samples; base += kThreads) {
      const int mine = base + lane_;
      unsigned taken = __ballot_sync(kAllLanes, mine < samples && takes(mine));
      for (; taken != 0; taken &= taken - 1) replace(base + __ffs(static_cast<int>(taken)) - 1);
    }
  }

  __device__ void SampleValue(int32_t position) {
    float weight = SumOfSquares([&](int i) { return value_[i]; });
    if (!(weight > 0.0f)) return;
    const uint64_t bits = RandomBits(value_key_, position);
    ForTaken(
        rule_.value_samples, [&](int j) { return SubGenTakesValue(SubBits(bits, j), mu_, weight); },
        [&](int j) {
          const int32_t entry = rule_.ValueEntry(j);
          for (int i = lane_; i < dim(); i += kWarpSize) {
            Store(pages_.keys, entry, i, key_[i]);
            Store(pages_.values, entry, i, value_[i]);
          }
          if (lane_ != 0) return;
          pages_.positions[Index(entry)] = position;
          pages_.scores[State(entry)] = weight;
        });
    mu_ += weight;
  }

  __device__ void SampleKey(int32_t position) {
    Nearest nearest = FindNearest();
    int free = -1;
    if (!nearest.Exists() || !IsWithin(nearest.distance)) {
      free = FindFree();
      if (free < 0) {
        radius_squared_ =
            SubGenWiden(rule_, radius_squared_, fminf(nearest.distance, LeastDistance()));
        Merge(position);
        nearest = FindNearest();
        free = FindFree();
      }
    }
    if (nearest.Exists() && IsWithin(nearest.distance)) {
      Join(nearest.index, position);
    } else {
      Found(free, position);
    }
  }

  __device__ Nearest FindNearest() const {
    Nearest mine = Nearest::None();
    for (int i = warp_; i < rule_.max_clusters; i += kWarps) {
      if (Count(i) > 0.0f) mine.Offer({DistanceOfKey(i), i});
    }
    return BlockNearest<kThreads>(mine, shared_);
  }
  // The lowest free cluster; -1: none.
  __device__ int FindFree() const {
    Nearest mine = Nearest::None();
    for (int i = thread_; i < rule_.max_clusters; i += kThreads) {
      if (Count(i) == 0.0f) mine.Offer({0.0f, i});
    }
    const Nearest free = BlockNearest<kThreads>(mine, shared_);
    return free.Exists() ? free.index : -1;
  }
  // The least distance between two centres.
  __device__ float LeastDistance() const {
    Nearest mine = Nearest::None();
    for (int i = 0; i < rule_.max_clusters; ++i) {
      if (Count(i) == 0.0f) continue;
      for (int j = i + 1 + warp_; j < rule_.max_clusters; j += kWarps) {
        if (Count(j) > 0.0f) mine.Offer({DistanceOfCentres(i, j), 0});
      }
    }
    return BlockNearest<kThreads>(mine, shared_).distance;
  }

  __device__ void Join(int cluster, int32_t position) {
    const float count = Count(cluster) + 1.0f;
    __syncthreads();  // all threads have read it
    if (thread_ == 0) Count(cluster) = count;
    const uint64_t bits = RandomBits(cluster_key_, position);
    ForTaken(
        rule_.cluster_samples, [&](int j) { return SubGenTakesKey(SubBits(bits, j), 1.0f, count); },
        [&](int j) { SetSample(rule_.ClusterEntry(cluster) + j, position); });
  }
  __device__ void Found(int cluster, int32_t position) {
    if (thread_ == 0) Count(cluster) = 1.0f;
    for (int i = thread_; i < dim(); i += kThreads)
      Store(pages_.values, rule_.ClusterEntry(cluster), i, key_[i]);
    for (int j = warp_; j < rule_.cluster_samples; j += kWarps)
      SetSample(rule_.ClusterEntry(cluster) + j, position);
  }
  // Called by one warp.
  __device__ void SetSample(int32_t entry, int32_t position) const {
    for (int i = lane_; i < dim(); i += kWarpSize) Store(pages_.keys, entry, i, key_[i]);
    if (lane_ == 0) pages_.positions[Index(entry)] = position;
  }

  // First negates the counts of the clusters that cluster i absorbs, so that all are known before
  // the samples are drawn in order.
  __device__ void Merge(int32_t position) {
    for (int i = 0; i < rule_.max_clusters; ++i) {
      const float own = Count(i);
      if (own == 0.0f) continue;
      int absorbs = 0;
      for (int j = i + 1 + warp_; j < rule_.max_clusters; j += kWarps) {
        const float count = Count(j);
        if (count == 0.0f || !IsWithin(DistanceOfCentres(i, j))) continue;
        if (lane_ == 0) Count(j) = -count;
        absorbs = 1;
      }
      if (__syncthreads_or(absorbs) == 0) continue;
      float all = own;
      for (int j = i + 1; j < rule_.max_clusters; ++j) {
        const float count = -Count(j);
        if (count <= 0.0f) continue;
        all += count;
        Absorb(i, j, count, all, position);
      }
      __syncthreads();
      if (thread_ == 0) Count(i) = all;
      for (int j = i + 1 + thread_; j < rule_.max_clusters; j += kThreads)
        if (Count(j) < 0.0f) Count(j) = 0.0f;
      __syncthreads();
    }
  }
  __device__ void Absorb(int into, int from, float count, float all, int32_t position) const {
    const uint64_t bits = RandomBits(merge_key_, position);
    const int32_t into_entry = rule_.ClusterEntry(into), from_entry = rule_.ClusterEntry(from);
    ForTaken(
        rule_.cluster_samples,
        [&](int j) {
          return SubGenTakesKey(SubBits(bits, from * rule_.cluster_samples + j), count, all);
        },
        [&](int j) {
          for (int i = lane_; i < dim(); i += kWarpSize)
            Store(pages_.keys, into_entry + j, i,
                  LoadRowElement(pages_.layout.dtype, pages_.keys,
                                 Index(from_entry + j) * dim() + i));
          if (lane_ == 0)
            pages_.positions[Index(into_entry + j)] = pages_.positions[Index(from_entry + j)];
        });
    __syncwarp();
    for (int j = thread_; j < rule_.cluster_samples; j += kThreads)
      pages_.positions[Index(from_entry + j)] = -1;
  }

  const KvPages& pages_;
  const PageIds* blocks_;
  const SubGenRule rule_;
  const uint64_t value_key_, cluster_key_, merge_key_;
  const int thread_, warp_, lane_;
  float* key_;
  float* value_;
  Nearest* shared_;
  float mu_ = 0.0f;
  float radius_squared_ = 0.0f;
};

// One block per head.
__global__ void BuildKernel(SubGenBuildArgs args) {
  __shared__ Nearest shared[kWarps];
  const int h = static_cast<int>(blockIdx.x), d = args.pages.layout.head_dim;
  float* key = DynamicShared<float>();
  Head head(args.pages, args.tables.HeadBlocks(args.slot, args.layer, h), args.rule, args.layer, h,
            key, key + d, shared);
  const float* k = args.k.f32() + h * args.kv_head_stride;
  const float* v = args.v.f32() + h * args.kv_head_stride;
  const auto row = [d](int j) { return static_cast<size_t>(j) * d; };
  head.Begin();
  const int window = args.n - args.rule.recent;
  const int warp = static_cast<int>(threadIdx.x) / kWarpSize;
  for (int j = warp; j < args.rule.sinks; j += kWarps) head.WriteExact(k + row(j), v + row(j), j);
  for (int j = args.rule.sinks; j < window; ++j) head.Stream(k + row(j), v + row(j), j);
  for (int j = window + warp; j < args.n; j += kWarps) head.WriteExact(k + row(j), v + row(j), j);
  head.Finish();
  if (threadIdx.x == 0)
    args.tables.lengths[args.tables.HeadIndex(args.slot, args.layer, h)] = args.rule.Capacity();
}

// Reads rows as fp32, from the arena or the pages. One warp per token; grid x: tokens, y: heads. k,
// v: [heads, n, head_dim].
__global__ void ReadRowsKernel(SubGenBuildArgs args, float* k, float* v) {
  const int h = static_cast<int>(blockIdx.y), lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const int j = static_cast<int>(blockIdx.x) * kWarps + static_cast<int>(threadIdx.x) / kWarpSize;
  if (j >= args.n) return;
  const KvLayout& layout = args.pages.layout;
  const PageIds* blocks = args.tables.HeadBlocks(args.slot, args.layer, h);
  const bool of_pages = args.k.data == nullptr;
  const size_t from = of_pages ? PageIndex(layout, blocks, j) * layout.head_dim
                               : h * args.kv_head_stride + static_cast<size_t>(j) * layout.head_dim;
  const size_t to = (static_cast<size_t>(h) * args.n + j) * layout.head_dim;
  for (int i = lane; i < layout.head_dim; i += kWarpSize) {
    if (!of_pages) {
      k[to + i] = LoadElement(args.k, from + i);
      v[to + i] = LoadElement(args.v, from + i);
      continue;
    }
    k[to + i] = LoadRowElement(layout.dtype, args.pages.keys, from + i);
    v[to + i] = LoadRowElement(layout.dtype, args.pages.values, from + i);
  }
}

// One block per (head, row).
__global__ void InsertKernel(SubGenInsertArgs args) {
  __shared__ Nearest shared[kWarps];
  const int h = static_cast<int>(blockIdx.x), row = static_cast<int>(blockIdx.y);
  const SequenceTables& tables = args.tables;
  const int slot = args.slots[row];
  if (slot < 0 || !tables.rules[slot].weighted) return;
  const size_t head_index = tables.HeadIndex(slot, args.layer, h);
  if (tables.lengths[head_index] != tables.caps[head_index]) return;
  const SubGenRule rule = args.rules[slot];
  const int32_t oldest = rule.ExactEntry(args.positions[row]);
  float* key = DynamicShared<float>();
  Head head(args.pages, tables.HeadBlocks(slot, args.layer, h), rule, args.layer, h, key,
            key + args.pages.layout.head_dim, shared);
  head.Load();
  head.StreamEntry(oldest);
  head.Finish();
  if (threadIdx.x == 0) tables.victims[head_index] = oldest;
}

size_t SharedBytes(const KvPages& pages) { return 2 * pages.layout.head_dim * sizeof(float); }

}  // namespace

cudaError_t SubGenBuild(const Context& context, const SubGenBuildArgs& args) {
  const int heads = args.tables.num_kv_heads;
  SubGenBuildArgs with_rows = args;
  if (args.k == nullptr || args.k.dtype != DType::kF32) {
    with_rows.kv_head_stride = static_cast<int64_t>(args.n) * args.pages.layout.head_dim;
    const size_t elements = static_cast<size_t>(with_rows.kv_head_stride) * heads;
    ScratchLayout layout;
    const size_t keys = layout.Add<float>(elements), values = layout.Add<float>(elements);
    void* scratch = nullptr;
    cudaError_t error = context.scratch->Get(layout.bytes(), &scratch);
    if (error != cudaSuccess) return error;
    with_rows.k = At<float>(scratch, keys);
    with_rows.v = At<float>(scratch, values);
    error = Launch(ReadRowsKernel, dim3(CeilDiv(args.n, kWarps), heads), dim3(kThreads), 0,
                   context.stream, args, At<float>(scratch, keys), At<float>(scratch, values));
    if (error != cudaSuccess) return error;
  }
  return Launch(BuildKernel, dim3(heads), dim3(kThreads), SharedBytes(args.pages), context.stream,
                with_rows);
}

cudaError_t SubGenInsert(const Context& context, const SubGenInsertArgs& args) {
  if (args.num_rows == 0) return cudaSuccess;
  return Launch(InsertKernel, dim3(args.tables.num_kv_heads, args.num_rows), dim3(kThreads),
                SharedBytes(args.pages), context.stream, args);
}

}  // namespace hydrant::cuda
