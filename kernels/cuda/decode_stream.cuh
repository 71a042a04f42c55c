// Decode attention by persistent blocks with equal shares of all heads' entries (decode_work.cuh).
// Tiles are prefetched (decode_ring.cuh). A block processes its run piece by piece, in the passes
// of decode_attention.cuh, and accumulates a head's pieces in shared memory, relative to the
// largest logit so far.
//
// Scores: a head of one piece is scored from the weights in shared memory; its positions
// and scores are loaded at the start of the piece. The logits of other heads are kept until
// the head is complete.
#ifndef HYDRANT_KERNELS_CUDA_DECODE_STREAM_CUH_
#define HYDRANT_KERNELS_CUDA_DECODE_STREAM_CUH_

#include <cuda_runtime.h>

#include <cmath>

#include "kernels/cuda/decode_entry.cuh"
#include "kernels/cuda/decode_join.cuh"
#include "kernels/cuda/decode_ring.cuh"
#include "kernels/cuda/decode_rolling.cuh"
#include "kernels/cuda/decode_softmax.cuh"
#include "kernels/cuda/decode_work.cuh"
#include "kernels/cuda/ptx.cuh"

namespace hydrant::cuda {

// Shared memory after DecodeShared, in this order.
struct StreamShared {
  BlockWork* work;
  WorkPiece* pieces;  // [RingPieces::kPieces]
  PageIds* ids;       // [RingPieces::kPieces, chunk_pages]
  float* sums;    // [group, head_dim]: weighted values of this block's entries of the head so far
  float* totals;  // [kTotals, group]
  void* ring;     // at a multiple of 16 bytes

  enum Total { kMaximum, kSum, kNumeratorMaximum, kKeep, kAdd, kTotals };

  __host__ __device__ static size_t BytesBeforeRing(const DecodeLaunch& launch) {
    const size_t bytes = Begin(launch) + kFixed + IdBytes(launch) +
                         (SumFloats(launch) + size_t{kTotals} * launch.group) * sizeof(float);
    return (bytes + 15) / 16 * 16;
  }
  __device__ StreamShared(unsigned char* memory, const DecodeLaunch& launch) {
    work = reinterpret_cast<BlockWork*>(memory + Begin(launch));
    pieces = reinterpret_cast<WorkPiece*>(work + 1);
    ids = reinterpret_cast<PageIds*>(pieces + RingPieces::kPieces);
    sums = reinterpret_cast<float*>(reinterpret_cast<unsigned char*>(ids) + IdBytes(launch));
    totals = sums + SumFloats(launch);
    ring = memory + BytesBeforeRing(launch);
  }

 private:
  static constexpr size_t kFixed = sizeof(BlockWork) + RingPieces::kPieces * sizeof(WorkPiece);
  static_assert(sizeof(BlockWork) % alignof(WorkPiece) == 0 && alignof(WorkPiece) <= 16);
  __host__ __device__ static size_t Begin(const DecodeLaunch& launch) {
    return (DecodeShared::Floats(launch) * sizeof(float) + 15) / 16 * 16;
  }
  __host__ __device__ static size_t IdBytes(const DecodeLaunch& launch) {
    return size_t{RingPieces::kPieces} * launch.chunk_pages * sizeof(PageIds);
  }
  __host__ __device__ static size_t SumFloats(const DecodeLaunch& launch) {
    return static_cast<size_t>(launch.group) * launch.args.pages.layout.head_dim;
  }
};

inline constexpr int kStreamChunk = 256;

// Processes one piece.
template <typename Products>
class StreamPiece {
 public:
  // `ids`: the piece's pages.
  __device__ StreamPiece(const DecodeLaunch& launch, const WorkPiece& piece, const PageIds* ids,
                         const DecodeShared& shared, const StreamShared& stream, Products& products)
      : l_(launch),
        pages_(launch.args.pages),
        piece_(piece),
        u_(piece.unit),
        rule_(piece.rule),
        ids_(ids),
        s_(shared),
        x_(stream),
        thread_(static_cast<int>(threadIdx.x)),
        softmax_(launch, piece.unit, shared),
        products_(products) {}

  // Ends with a barrier, except for the stores of a head's last piece. Calls between() after
  // the first barrier.
  template <typename Between>
  __device__ void Run(Between between) {
    Prepare();
    const States states = LoadStates();
    __syncthreads();
    between();
    if (rule_.rolling) {
      RollingLogits<kDType>(l_, u_, s_, RankAbove());
    } else {
      products_.Logits();
    }
    __syncthreads();
    if (l_.args.softcap != 0.0f) softmax_.CapLogits();
    if (rule_.scored && !rule_.by_position && !piece_.IsWholeHead()) softmax_.KeepLogits();
    softmax_.Weights((u_.count + Products::kTile - 1) / Products::kTile * Products::kTile);
    AddTotals();
    for (int g = 0; g < l_.group; g += l_.joined_rows) {
      products_.Values(g);
      __syncthreads();
      AddValues(g);
      __syncthreads();
    }
    if (piece_.ends) FinishHead(states);
  }

 private:
  static constexpr DType kDType = Products::kDType;
  static constexpr int kOfThread = kStreamChunk / kDecodeThreads;  // entries per thread

  // This thread's entries before the step, if the piece is a whole head.
  struct States {
    int32_t positions[kOfThread];
    float scores[kOfThread];
  };

  __device__ void Prepare() {
    if (rule_.rolling) {
      if (piece_.begins && thread_ == 0)
        RankAbove() = u_.grows ? u_.length : pages_.positions[DataSlot(l_, u_, u_.new_entry)];
      for (int i = thread_; i < u_.count; i += kDecodeThreads)
        s_.index[i] = DataSlot(l_, u_, u_.begin + i);
    }
    const int at = u_.new_entry - u_.begin;
    if (at >= 0 && at < u_.count) StoreNewEntry<kDType>(l_, u_, rule_);
    if (!piece_.begins) return;
    const float* q = l_.args.q + (static_cast<size_t>(u_.row) * l_.args.num_heads +
                                  static_cast<size_t>(u_.head) * l_.group) *
                                     pages_.layout.head_dim;
    products_.StoreQueries(q, l_.args.scale * kLog2E);
  }
  // In a rolling head, ranks above this decrease by one.
  __device__ static int32_t& RankAbove() {
    __shared__ int32_t rank_above;
    return rank_above;
  }

  __device__ float& Total(StreamShared::Total which, int h) const {
    return x_.totals[which * l_.group + h];
  }
  // Merges the piece's maxima and sums with the block's earlier pieces of the head. kKeep and kAdd
  // become the factors of the earlier values and of this piece's.
  __device__ void AddTotals() {
    using Of = StreamShared;
    for (int h = thread_; h < l_.group; h += kDecodeThreads) {
      const float maximum = softmax_.Maximum(h), sum = softmax_.Sum(h);
      const float numerator_maximum = softmax_.NumeratorMaximum(h);
      if (piece_.begins) {
        Total(Of::kMaximum, h) = maximum;
        Total(Of::kSum, h) = sum;
        Total(Of::kNumeratorMaximum, h) = numerator_maximum;
        continue;
      }
      const float before = Total(Of::kMaximum, h), highest = fmaxf(before, maximum);
      Total(Of::kMaximum, h) = highest;
      Total(Of::kSum, h) =
          Total(Of::kSum, h) * Exp2(before - highest) + sum * Exp2(maximum - highest);
      const float numerator_before = Total(Of::kNumeratorMaximum, h);
      const float numerator_highest = fmaxf(numerator_before, numerator_maximum);
      Total(Of::kNumeratorMaximum, h) = numerator_highest;
      Total(Of::kKeep, h) = Exp2(numerator_before - numerator_highest);
      Total(Of::kAdd, h) = Exp2(numerator_maximum - numerator_highest);
    }
  }
  __device__ void AddValues(int g) {
    const int head_dim = pages_.layout.head_dim;
    for (int i = thread_; i < l_.joined_rows * head_dim; i += kDecodeThreads) {
      const int h = g + i / head_dim, d = i % head_dim;
      if (h >= l_.group) continue;
      float sum = 0.0f;
      for (int warp = 0; warp < kDecodeWarps; ++warp)
        sum += s_.joined[(warp * l_.joined_rows + h - g) * l_.dim_padded + d];
      if constexpr (IsTransformed(kDType)) sum = TransformInWarp(sum) * kFromPage;
      float& so_far = x_.sums[h * head_dim + d];
      so_far = piece_.begins
                   ? sum
                   : so_far * Total(StreamShared::kKeep, h) + sum * Total(StreamShared::kAdd, h);
    }
  }

  // ---- A head --------------------------------------------------------------------------------

  __device__ void FinishHead(const States& states) {
    if (piece_.first_block == piece_.last_block) {
      FinishWhole(states);
    } else {
      StorePart();
      const int parts = piece_.last_block - piece_.first_block + 1;
      if (!IsLastOfHead(l_, u_.unit, parts)) return;
      const auto part = [&](int i) { return PartOf(piece_.first_block + i, i == 0); };
      DecodeJoin(l_, u_, s_, softmax_, parts, part).Run();
      ScoreKept();
    }
  }

  __device__ void FinishWhole(const States& states) {
    for (int h = thread_; h < l_.group; h += kDecodeThreads) {
      if (softmax_.HasSinks())
        Total(StreamShared::kSum, h) += softmax_.SinkShare(h, Total(StreamShared::kMaximum, h));
      // Scores are computed from both, in this kernel or the next.
      const size_t head = static_cast<size_t>(u_.unit) * l_.group + h;
      if (rule_.scored) l_.head_max[head] = Total(StreamShared::kMaximum, h);
      if (rule_.scored) l_.head_sum[head] = Total(StreamShared::kSum, h);
    }
    __syncthreads();
    const int head_dim = pages_.layout.head_dim;
    for (int i = thread_; i < l_.group * head_dim; i += kDecodeThreads) {
      const int h = i / head_dim;
      const float excess =
          Total(StreamShared::kNumeratorMaximum, h) - Total(StreamShared::kMaximum, h);
      const float scale = u_.weighted ? Exp2(fminf(excess, DecodeSoftmax::kMaxExcess)) : 1.0f;
      StoreHeadOutput(l_, u_, h, i % head_dim, x_.sums[i] * scale / Total(StreamShared::kSum, h));
    }
    if (!rule_.scored) return;
    if (piece_.IsWholeHead()) {
      ScoreStates(states);
    } else {
      ScoreKept();
    }
  }

  // A block has parts of at most two heads: one continued from the block before it, and one
  // continued in the next block.
  __device__ static int PartOf(int block, bool first_of_head) {
    return 2 * block + (first_of_head ? 1 : 0);
  }
  __device__ void StorePart() const {
    const int head_dim = pages_.layout.head_dim;
    const int block = static_cast<int>(blockIdx.x);
    const size_t part = static_cast<size_t>(PartOf(block, block == piece_.first_block)) * l_.group;
    for (int h = thread_; h < l_.group; h += kDecodeThreads) {
      l_.part_max[part + h] = Total(StreamShared::kMaximum, h);
      l_.part_sum[part + h] = Total(StreamShared::kSum, h);
      if (u_.weighted) l_.part_numerator_max[part + h] = Total(StreamShared::kNumeratorMaximum, h);
    }
    for (int i = thread_; i < l_.group * head_dim; i += kDecodeThreads)
      l_.part_out[part * head_dim + i] = x_.sums[i];
  }

  // ---- Scores --------------------------------------------------------------------------------

  __device__ States LoadStates() const {
    States states = {};
    if (!rule_.scored || !piece_.IsWholeHead()) return states;
#pragma unroll
    for (int i = 0; i < kOfThread; ++i) {
      const int entry = min(thread_ + i * kDecodeThreads, u_.count - 1);
      states.positions[i] = __ldcg(PositionAt(entry));
      if (!rule_.by_position) states.scores[i] = __ldcg(ScoreOf(entry));
    }
    return states;
  }
  // Position of an entry of a whole head.
  __device__ int32_t* PositionAt(int entry) const {
    const int page = l_.PageOf(entry), block_size = pages_.layout.block_size;
    return pages_.positions +
           static_cast<uint32_t>(ids_[page].data * block_size + entry - page * block_size);
  }
  __device__ float* ScoreOf(int entry) const {
    const int page = l_.PageOf(entry), block_size = pages_.layout.block_size;
    return pages_.scores + static_cast<size_t>(ids_[page].state) * block_size + entry -
           page * block_size;
  }

  // Scores from the weights in shared memory.
  __device__ void ScoreStates(const States& states) {
    if (l_.scores_follow && thread_ == 0)
      l_.head_sum[static_cast<size_t>(u_.unit) * l_.group] = 0.0f;
    VictimCandidate mine = VictimCandidate::None();
#pragma unroll
    for (int i = 0; i < kOfThread; ++i) {
      const int entry = thread_ + i * kDecodeThreads;
      if (entry >= u_.count) continue;
      float weight = 0.0f;
      for (int h = 0; h < l_.group && !rule_.by_position; ++h)
        weight =
            ReduceWeight(rule_.reduce, weight,
                         s_.shares[h * l_.weight_stride() + entry] / Total(StreamShared::kSum, h));
      const bool is_new = entry == u_.new_entry;
      int32_t position = is_new && !rule_.rolling ? l_.args.positions[u_.row] : states.positions[i];
      if (rule_.rolling) position = RankAfter(u_, entry, position, RankAbove());
      ScoreEntry(l_, u_, rule_, entry, position, is_new ? 0.0f : states.scores[i], weight,
                 PositionAt(entry), ScoreOf(entry), &mine);
    }
    StoreVictim(mine);
  }

  // Scores from the kept logits of the whole head, unless a separate kernel follows.
  __device__ void ScoreKept() {
    if (!rule_.scored) return;
    if (l_.scores_follow) {
      if (rule_.rolling && thread_ == 0) l_.rank_above[u_.unit] = RankAbove();
      return;
    }
    __syncthreads();  // head_max and head_sum are written
    DecodeUnit all = u_;
    all.begin = 0;
    all.count = u_.length;
    const auto slot = [&](int i) { return DataSlot(l_, all, i); };
    const auto weight = [&](int h, int i) { return KeptShare(l_, all.unit, h, i); };
    StoreVictim(ScoreEntries(l_, all, rule_, rule_.rolling ? RankAbove() : 0, slot, weight));
  }

  __device__ void StoreVictim(const VictimCandidate& mine) {
    __shared__ VictimCandidate candidates[kDecodeWarps];
    if (u_.length != l_.args.tables.caps[u_.head_index]) return;
    const VictimCandidate victim = BlockVictim<kDecodeThreads>(mine, candidates);
    if (thread_ == 0) l_.args.tables.victims[u_.head_index] = victim.entry;
  }

  const DecodeLaunch& l_;
  const KvPages& pages_;
  const WorkPiece& piece_;
  const DecodeUnit& u_;
  const DecodeRule& rule_;
  const PageIds* const ids_;
  const DecodeShared& s_;
  const StreamShared& x_;
  const int thread_;
  DecodeSoftmax softmax_;
  Products& products_;
};

// Processes a block's run.
template <typename Products>
class StreamBlock {
 public:
  __device__ StreamBlock(const DecodeLaunch& launch, const StreamShared& stream)
      : l_(launch), x_(stream), pieces_{stream.pieces, stream.ids} {}

  __device__ void Run() {
    x_.work->Start(l_);
    for (int i = 0; i < 2; ++i) {
      TakePiece(i);
      __syncthreads();
      StoreId(i, LoadId(i));
    }
    __syncthreads();
    for (int index = 0; x_.pieces[index].unit.count > 0; index = RingPieces::After(index)) {
      const int last = RingPieces::After(RingPieces::After(index));
      TakePiece(last);
      Attend(index, last);
    }
    GrowHeads();
  }

 private:
  __device__ void TakePiece(int index) const {
    if (threadIdx.x < kWarpSize) x_.work->Take(l_, &x_.pieces[index]);
  }
  // `last`: the piece taken last; its page ids are read meanwhile.
  __device__ void Attend(int index, int last) {
    const WorkPiece& piece = x_.pieces[index];
    const DecodeShared shared(DynamicShared<float>(), l_, piece.unit.weighted);
    Products products(l_, piece.unit, shared, pieces_, x_.ring, &ring_);
    products.Fill();
    PageIds id = {};
    StreamPiece<Products>(l_, piece, pieces_.IdsOf(l_, index), shared, x_, products).Run([&] {
      id = LoadId(last);
    });
    StoreId(last, id);
    __syncthreads();
    ++ring_.known;
  }

  // The page id that this thread stores; a piece spans no more pages than there are threads.
  __device__ PageIds LoadId(int index) const {
    const DecodeUnit& unit = x_.pieces[index].unit;
    const int page = l_.PageOf(unit.begin) + static_cast<int>(threadIdx.x);
    if (unit.count == 0 || page > l_.PageOf(unit.begin + unit.count - 1)) return {};
    return l_.args.tables.HeadBlocks(unit.slot, l_.args.layer, unit.head)[page];
  }
  __device__ void StoreId(int index, const PageIds& id) const {
    if (static_cast<int>(threadIdx.x) < l_.chunk_pages) pieces_.IdsOf(l_, index)[threadIdx.x] = id;
  }

  // Lengths may change only after all blocks have read them: the last block of the launch, or the
  // scoring kernel that follows, updates them.
  __device__ void GrowHeads() const {
    const SequenceTables& tables = l_.args.tables;
    const int units = l_.args.num_rows * tables.num_kv_heads;
    if (l_.scores_follow || !IsLastOfHead(l_, units, static_cast<int>(gridDim.x))) return;
    for (int unit = static_cast<int>(threadIdx.x); unit < units; unit += kDecodeThreads) {
      const WorkHead head = LoadWorkHead(l_, unit);
      if (!head.grows) continue;
      tables.lengths[tables.HeadIndex(head.slot, l_.args.layer, unit % tables.num_kv_heads)] =
          head.length;
    }
  }

  const DecodeLaunch& l_;
  const StreamShared& x_;
  const RingPieces pieces_;
  RingState ring_;
};

template <typename Products>
__global__ void __launch_bounds__(kDecodeThreads, Products::kBlocksPerSm)
    StreamKernel(const __grid_constant__ DecodeLaunch launch) {
  WaitForPredecessor();
  const StreamShared stream(DynamicShared<unsigned char>(), launch);
  StreamBlock<Products>(launch, stream).Run();
}

}  // namespace hydrant::cuda

#endif  // HYDRANT_KERNELS_CUDA_DECODE_STREAM_CUH_
