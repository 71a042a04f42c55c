// Tiles of keys and values on their way from pages to shared memory, some ahead of the one at work,
// so that the memory is busy while a block turns logits into weights, joins its warps' sums and
// scores its entries. A warp has a ring of its own; nothing but the warp waits for it. Tiles come
// in the order of their use: a piece's keys, its values, then those of the next piece.
#ifndef HYDRANT_KERNELS_CUDA_DECODE_RING_CUH_
#define HYDRANT_KERNELS_CUDA_DECODE_RING_CUH_

#include <cuda_runtime.h>

#include "kernels/cuda/decode_products_mma.cuh"
#include "kernels/cuda/decode_work.cuh"

namespace hydrant::cuda {

// The pieces of a block's run that tiles are copied of, in shared memory: the one at work and those
// behind it, in turn.
struct RingPieces {
  static constexpr int kPieces = 3;

  WorkPiece* pieces;  // [kPieces]
  PageIds* ids;       // [kPieces, chunk_pages], from the page of a piece's first entry on

  __device__ static int After(int index) { return index + 1 == kPieces ? 0 : index + 1; }
  __device__ PageIds* IdsOf(const DecodeLaunch& launch, int index) const {
    return ids + index * launch.chunk_pages;
  }
};

// Where a warp's ring stands, from piece to piece.
struct RingState {
  int piece = 0;           // whose tiles' copies begin next,
  int pass = 0, step = 0;  // in which pass, from which entry
  int known = 1;           // pieces behind it that are known
  int fill = 0, use = 0;   // where the next copy goes, and where the tile at work lies
  int ahead = 0;           // tiles whose copies have begun and that have not been used
};

// The products of one piece.
template <DType kPageDType, int kDims>
class RingProducts : public MmaTile<kPageDType, kDims> {
  using Base = MmaTile<kPageDType, kDims>;
  static constexpr int kTiles = 3;  // of a warp's ring

 public:
  using Base::kTile;
  static constexpr int kBlocksPerSm = kDims <= 128 ? 3 : 2;  // that the registers leave room for
  static constexpr int kStep = kDecodeWarps * kTile;         // entries of a tile of each warp
  static constexpr size_t kRingBytes = size_t{kDecodeWarps} * kTiles * kTile * kDims * 2;

  // `ring`: kRingBytes of shared memory, aligned to 16.
  __device__ RingProducts(const DecodeLaunch& launch, const DecodeUnit& unit,
                          const DecodeShared& shared, const RingPieces& pieces, void* ring,
                          RingState* state)
      : Base(launch, unit, shared),
        pieces_(pieces),
        ring_(static_cast<uint4*>(ring) + warp_ * kTiles * kTileVectors),
        at_(*state) {}

  // Begins copies until the ring is full or no piece is known.
  __device__ void Fill() {
    while (at_.ahead < kTiles) {
      const WorkPiece& piece = pieces_.pieces[at_.piece];
      const int key_passes = piece.rule.rolling ? 0 : 1;
      const int passes = key_passes + (l_.group + Base::kGroup - 1) / Base::kGroup;
      if (piece.unit.count == 0 || at_.pass >= passes) {
        if (at_.known == 0) return;
        --at_.known;
        at_.piece = RingPieces::After(at_.piece);
        at_.pass = 0;
        continue;
      }
      CopyTile(piece.unit, at_.pass < key_passes ? l_.args.pages.keys : l_.args.pages.values);
      CommitCopies();
      at_.fill = After(at_.fill);
      ++at_.ahead;
      at_.step += kStep;
      if (at_.step < piece.unit.count) continue;
      at_.step = 0;
      ++at_.pass;
    }
  }

  __device__ void Logits() {
    ForEachTile(this->l_.args.k, [&](int tile) {
      typename Base::Keys keys;
      LoadKeys(keys);
      this->MultiplyKeys(tile, keys);
    });
  }

  __device__ void Values(int g) {
    typename Base::Sums sums = {};
    ForEachTile(this->l_.args.v, [&](int tile) {
      typename Base::Values values;
      LoadValues(values);
      this->MultiplyValues(g, tile, values, sums);
    });
    this->StoreSums(sums);
  }

 private:
  using Base::g_;
  using Base::head_dim_;
  using Base::l_;
  using Base::lane_;
  using Base::t_;
  using Base::u_;
  using Base::warp_;
  static constexpr int kChunks = kDims / 8;  // vectors of 16 bytes in a row
  static constexpr int kTileVectors = kTile * kChunks;

  // Where chunk `chunk` of a row lies in its tile. The permutation keeps the reads of LoadKeys()
  // and LoadValues(), and the copies, free of bank conflicts.
  __device__ static int Place(int row, int chunk) {
    return row * kChunks + (chunk ^ ((row >> 2 & 3) << 1) ^ ((row & 1) << 2));
  }
  __device__ uint4* Tile(int slot) const { return ring_ + slot * kTileVectors; }
  __device__ static int After(int slot) { return slot + 1 == kTiles ? 0 : slot + 1; }

  // Calls multiply(tile) for each step of the unit's entries, when the warp's tile is there.
  template <typename Multiply>
  __device__ void ForEachTile(const float* new_rows, Multiply multiply) {
    const int count = u_.count, new_row = u_.new_entry - u_.begin;
    for (int tile = warp_ * kTile; tile < count + warp_ * kTile; tile += kStep) {
      WaitForTile();
      if (tile < count) {
        StoreNewRow(new_row - tile, new_rows);
        multiply(tile);
      }
      __syncwarp();  // all lanes have read the tile
      at_.use = After(at_.use);
      --at_.ahead;
      Fill();
    }
  }

  // Groups are as many as tiles: the last `ahead` - 1 need not be there yet.
  __device__ void WaitForTile() const {
    static_assert(kTiles == 3);
    if (at_.ahead == 3) {
      WaitCopies<2>();
    } else if (at_.ahead == 2) {
      WaitCopies<1>();
    } else {
      WaitCopies<0>();
    }
    __syncwarp();
  }

  // What is read past the last entry is that entry once more: all numbers are finite.
  __device__ void CopyTile(const DecodeUnit& unit, const void* base) const {
    const int first = at_.step + warp_ * kTile;
    if (first >= unit.count) return;
    const int block_size = l_.args.pages.layout.block_size;
    const int first_page = l_.PageOf(unit.begin);
    const PageIds* ids = pieces_.IdsOf(l_, at_.piece) - first_page;
    uint4* tile = Tile(at_.fill);
#pragma unroll 4
    for (int i = lane_; i < kTileVectors; i += kWarpSize) {
      const int row = i / kChunks, chunk = i % kChunks;
      const int entry = unit.begin + min(first + row, unit.count - 1);
      const int page = l_.PageOf(entry);
      const auto slot =
          static_cast<uint32_t>(ids[page].data * block_size + entry - page * block_size);
      if (8 * chunk < head_dim_)
        CopyAsync16(
            tile + Place(row, chunk),
            static_cast<const uint4*>(base) + slot * static_cast<uint64_t>(head_dim_ / 8) + chunk,
            true);
    }
  }

  // The new entry's row, where it is in the tile: its copy may have begun before the row was in its
  // page.
  __device__ void StoreNewRow(int row, const float* new_rows) const {
    if (row < 0 || row >= kTile) return;
    const float* from = new_rows + static_cast<size_t>(u_.unit) * head_dim_;
    for (int chunk = lane_; 8 * chunk < head_dim_; chunk += kWarpSize) {
      uint32_t words[4];
#pragma unroll
      for (int i = 0; i < 4; ++i)
        words[i] = PackHalves<Base::kBF16>(from[8 * chunk + 2 * i], from[8 * chunk + 2 * i + 1]);
      Tile(at_.use)[Place(row, chunk)] = make_uint4(words[0], words[1], words[2], words[3]);
    }
    __syncwarp();
  }

  __device__ void LoadKeys(typename Base::Keys& keys) const {
#pragma unroll
    for (int n = 0; n < 2; ++n) {
#pragma unroll
      for (int i = 0; i < kDims / 32; ++i) keys[n][i] = Vector(8 * n + g_, 4 * i + t_);
    }
  }
  __device__ void LoadValues(typename Base::Values& values) const {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
#pragma unroll
      for (int v = 0; v < kDims / 64; ++v) values[e][v] = Vector(4 * t_ + e, 8 * v + g_);
    }
  }
  // Zeros beyond the entry's end.
  __device__ uint4 Vector(int row, int chunk) const {
    return 8 * chunk < head_dim_ ? Tile(at_.use)[Place(row, chunk)] : make_uint4(0, 0, 0, 0);
  }

  const RingPieces& pieces_;
  uint4* const ring_;  // [kTiles, kTile, kChunks], this warp's
  RingState& at_;
};

}  // namespace hydrant::cuda

#endif  // HYDRANT_KERNELS_CUDA_DECODE_RING_CUH_
