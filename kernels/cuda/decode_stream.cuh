// Decode attention by blocks that stay and share all heads' entries evenly (decode_work.cuh), with
// tiles that arrive ahead of their use (decode_ring.cuh). A block goes through its run piece by
// piece; a piece goes through the passes of decode_attention.cuh. What a block has attended to of
// one head is added up in shared memory, each piece relative to the largest logit so far.
//
// Scores: a head that was attended to as one piece is scored from the weights in shared memory; its
// positions and scores are on their way since the piece began. Of others the logits are kept.
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

namespace hydrant::cuda {

// Shared memory behind DecodeShared, in this order.
struct StreamShared {
  static constexpr int kIdBuffers = 3;  // of the piece at work and the two behind it

  float* sums;    // [group, head_dim]: weighted values of this block's entries of the head so far
  float* totals;  // [kTotals, group]
  PageIds* ids;   // [kIdBuffers, chunk_pages]
  WorkHead* window;  // [BlockWork::kWindow]
  void* ring;

  enum Total { kMaximum, kSum, kNumeratorMaximum, kKeep, kAdd, kTotals };

  __host__ __device__ static size_t FloatsBeforeRing(const DecodeLaunch& launch) {
    const size_t floats = DecodeShared::Floats(launch) + SumFloats(launch) + TotalFloats(launch) +
                          IdFloats(launch) + kWindowFloats;
    return (floats + 3) / 4 * 4;
  }
  __device__ StreamShared(float* memory, const DecodeLaunch& launch) {
    sums = memory + DecodeShared::Floats(launch);
    totals = sums + SumFloats(launch);
    ids = reinterpret_cast<PageIds*>(totals + TotalFloats(launch));
    window = reinterpret_cast<WorkHead*>(totals + TotalFloats(launch) + IdFloats(launch));
    ring = memory + FloatsBeforeRing(launch);
  }

 private:
  static constexpr size_t kWindowFloats = BlockWork::kWindow * sizeof(WorkHead) / sizeof(float);
  __host__ __device__ static size_t SumFloats(const DecodeLaunch& launch) {
    return static_cast<size_t>(launch.group) * launch.args.pages.layout.head_dim;
  }
  __host__ __device__ static size_t TotalFloats(const DecodeLaunch& launch) {
    return (static_cast<size_t>(kTotals) * launch.group + 1) / 2 * 2;
  }
  __host__ __device__ static size_t IdFloats(const DecodeLaunch& launch) {
    return size_t{kIdBuffers} * launch.chunk_pages * sizeof(PageIds) / sizeof(float);
  }
};

inline constexpr int kStreamChunk = 256;

template <typename Products>
class StreamBlock {
 public:
  // `unit` and `shared` are the block's own. (Beside it, not in it: an object that points into
  // itself would not be kept in registers.)
  __device__ StreamBlock(const DecodeLaunch& launch, DecodeUnit& unit, DecodeShared& shared,
                         const StreamShared& stream)
      : l_(launch),
        pages_(launch.args.pages),
        u_(unit),
        s_(shared),
        x_(stream),
        thread_(static_cast<int>(threadIdx.x)),
        work_(launch, stream.window),
        softmax_(launch, unit, shared),
        products_(launch, unit, shared, stream.ring) {}

  __device__ void Run() {
    piece_ = work_.Take();
    WorkPiece next = work_.Take();
    StoreIds(0, LoadIds(piece_));
    StoreIds(1, LoadIds(next));
    __syncthreads();
    products_.Start(RingPieceOf(piece_, 0), RingPieceOf(next, 1));
    int buffer = 0;
    while (piece_.count > 0) {
      const WorkPiece after = work_.Take();
      const PageIds ids = LoadIds(after);  // stored when the piece is done
      SetUnit();
      Attend(x_.ids + buffer * l_.chunk_pages);
      const int free_buffer = (buffer + 2) % StreamShared::kIdBuffers;
      StoreIds(free_buffer, ids);
      __syncthreads();
      buffer = (buffer + 1) % StreamShared::kIdBuffers;
      piece_ = next;
      next = after;
      products_.Advance(RingPieceOf(next, (buffer + 1) % StreamShared::kIdBuffers));
    }
    GrowHeads();
  }

 private:
  static constexpr DType kDType = Products::kDType;
  static constexpr int kOfThread = kStreamChunk / kDecodeThreads;  // entries of a piece

  // Of this thread's entries of the piece, before the step.
  struct EntryStates {
    int32_t positions[kOfThread];
    float scores[kOfThread];
    float* scores_at[kOfThread];
    uint32_t slots[kOfThread];
  };

  __device__ static int RoundUpToTile(int entries) {
    return (entries + Products::kTile - 1) / Products::kTile * Products::kTile;
  }

  // ---- The pieces' pages ---------------------------------------------------------------------

  // The id that this thread stores; a piece lies in no more pages than there are threads.
  __device__ PageIds LoadIds(const WorkPiece& piece) const {
    if (piece.count == 0) return {};
    const SequenceTables& tables = l_.args.tables;
    const int slot = work_.Head(piece.unit).slot;
    const int first = l_.PageOf(piece.begin), last = l_.PageOf(piece.begin + piece.count - 1);
    if (first + thread_ > last) return {};
    const int head = piece.unit % tables.num_kv_heads;
    return tables.HeadBlocks(slot, l_.args.layer, head)[first + thread_];
  }
  __device__ void StoreIds(int buffer, const PageIds& ids) const {
    if (thread_ < l_.chunk_pages) x_.ids[buffer * l_.chunk_pages + thread_] = ids;
  }
  __device__ int Skew(const WorkPiece& piece) const {
    return piece.begin - l_.PageOf(piece.begin) * pages_.layout.block_size;
  }
  __device__ RingPiece RingPieceOf(const WorkPiece& piece, int buffer) const {
    RingPiece ring;
    if (piece.count == 0) return ring;
    ring.count = piece.count;
    ring.keys = !l_.args.tables.rules[work_.Head(piece.unit).slot].rolling;
    ring.passes = Products::ValuePasses(l_.group) + (ring.keys ? 1 : 0);
    ring.ids = x_.ids + buffer * l_.chunk_pages;
    ring.skew = Skew(piece);
    return ring;
  }

  // ---- A piece -------------------------------------------------------------------------------

  __device__ void SetUnit() {
    const SequenceTables& tables = l_.args.tables;
    const WorkHead head = work_.Head(piece_.unit);
    u_.unit = piece_.unit;
    u_.row = piece_.unit / tables.num_kv_heads;
    u_.head = piece_.unit % tables.num_kv_heads;
    u_.slot = head.slot;
    u_.head_index = tables.HeadIndex(head.slot, l_.args.layer, u_.head);
    u_.length = head.length;
    u_.new_entry = head.new_entry;
    u_.grows = head.grows;
    u_.begin = piece_.begin;
    u_.count = piece_.count;
    rule_ = tables.rules[head.slot];
    u_.weighted = l_.weighted && rule_.weighted;
    s_.SetWeighted(l_, u_.weighted);
  }

  // Whether the head is this piece alone: its scores need no other.
  __device__ bool IsWholeHead() const { return u_.count == u_.length; }
  __device__ bool KeepsLogits() const {
    return rule_.scored && !rule_.by_position && !IsWholeHead();
  }

  __device__ void Attend(const PageIds* ids) {
    Prepare();
    const EntryStates states = LoadStates(ids);
    __syncthreads();
    if (rule_.rolling) {
      RollingLogits<kDType>(l_, u_, s_, RankAbove());
    } else {
      products_.Logits();
    }
    __syncthreads();
    if (l_.args.softcap != 0.0f) softmax_.CapLogits();
    if (KeepsLogits()) softmax_.KeepLogits();
    softmax_.Weights(RoundUpToTile(u_.count));
    AddTotals();
    for (int g = 0; g < l_.group; g += l_.joined_rows) {
      products_.Values(g);
      __syncthreads();
      AddValues(g);
      __syncthreads();
    }
    if (piece_.ends) FinishHead(states);
  }

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
  // In a rolling head ranks greater than this go down by one.
  __device__ static int32_t& RankAbove() {
    __shared__ int32_t rank_above;
    return rank_above;
  }

  __device__ float& Total(StreamShared::Total which, int h) const {
    return x_.totals[which * l_.group + h];
  }
  // The piece's maxima and sums join those of the block's earlier pieces of the head. kKeep and
  // kAdd become what earlier values and this piece's are multiplied by.
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
      float& so_far = x_.sums[h * head_dim + d];
      so_far = piece_.begins
                   ? sum
                   : so_far * Total(StreamShared::kKeep, h) + sum * Total(StreamShared::kAdd, h);
    }
  }

  // ---- A head --------------------------------------------------------------------------------

  __device__ void FinishHead(const EntryStates& states) {
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

  __device__ void FinishWhole(const EntryStates& states) {
    for (int h = thread_; h < l_.group; h += kDecodeThreads) {
      if (softmax_.HasSinks())
        Total(StreamShared::kSum, h) += softmax_.SinkShare(h, Total(StreamShared::kMaximum, h));
      // What scores come of, now or later.
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
      const float scale = u_.weighted ? Exp2(fminf(excess, DecodeSoftmax::kMostExcess)) : 1.0f;
      StoreHeadOutput(l_, u_, h, i % head_dim, x_.sums[i] * scale / Total(StreamShared::kSum, h));
    }
    if (!rule_.scored) return;
    if (IsWholeHead()) {
      ScoreStates(states);
    } else {
      ScoreKept();
    }
  }

  // A block has parts of two heads at most: of one that began before its run, and of one that goes
  // on behind it.
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

  __device__ EntryStates LoadStates(const PageIds* ids) const {
    EntryStates states = {};
    if (!rule_.scored || !IsWholeHead()) return states;
    const int block_size = pages_.layout.block_size, skew = Skew(piece_);
#pragma unroll
    for (int i = 0; i < kOfThread; ++i) {
      const int entry = skew + min(thread_ + i * kDecodeThreads, u_.count - 1);
      const int page = l_.PageOf(entry), in_page = entry - page * block_size;
      states.slots[i] = static_cast<uint32_t>(ids[page].data * block_size + in_page);
      states.scores_at[i] =
          pages_.scores + static_cast<size_t>(ids[page].state) * block_size + in_page;
      states.positions[i] = __ldcg(&pages_.positions[states.slots[i]]);
      if (!rule_.by_position) states.scores[i] = __ldcg(states.scores_at[i]);
    }
    return states;
  }

  // From the weights in shared memory.
  __device__ void ScoreStates(const EntryStates& states) {
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
                 &pages_.positions[states.slots[i]], states.scores_at[i], &mine);
    }
    StoreVictim(mine);
  }

  // From the kept logits of the whole head, unless a kernel of its own does it.
  __device__ void ScoreKept() {
    if (!rule_.scored) return;
    if (l_.scores_follow) {
      if (rule_.rolling && thread_ == 0) l_.rank_above[u_.unit] = RankAbove();
      return;
    }
    __syncthreads();  // head_max and head_sum are there
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

  // Only when all blocks have read all lengths may they change: the last block of the launch does
  // it, or the kernel of the scores that follow.
  __device__ void GrowHeads() {
    const int units = l_.args.num_rows * l_.args.tables.num_kv_heads;
    if (l_.scores_follow || !IsLastOfHead(l_, units, static_cast<int>(gridDim.x))) return;
    const SequenceTables& tables = l_.args.tables;
    for (int unit = thread_; unit < units; unit += kDecodeThreads) {
      const WorkHead head = LoadWorkHead(l_, unit);
      if (!head.grows) continue;
      tables.lengths[tables.HeadIndex(head.slot, l_.args.layer, unit % tables.num_kv_heads)] =
          head.length;
    }
  }

  const DecodeLaunch& l_;
  const KvPages& pages_;
  DecodeUnit& u_;
  DecodeShared& s_;
  const StreamShared& x_;
  const int thread_;
  BlockWork work_;
  WorkPiece piece_;
  DecodeRule rule_;
  DecodeSoftmax softmax_;
  Products products_;
};

template <typename Products>
__global__ void __launch_bounds__(kDecodeThreads, Products::kBlocksPerSm)
    StreamKernel(const __grid_constant__ DecodeLaunch launch) {
  DecodeUnit unit;
  DecodeShared shared(DynamicShared<float>(), launch, launch.weighted);
  const StreamShared stream(DynamicShared<float>(), launch);
  StreamBlock<Products> block(launch, unit, shared, stream);
  block.Run();
}

}  // namespace hydrant::cuda

#endif  // HYDRANT_KERNELS_CUDA_DECODE_STREAM_CUH_
