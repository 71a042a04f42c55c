// Tiles of keys and values on their way from pages to shared memory, some ahead of the one at work,
// so that the memory is busy while a block turns logits into weights, joins its warps' sums and
// scores its entries. A warp has a ring of its own; nothing but the warp waits for it. Tiles come
// in the order of their use: a piece's keys, its values, then those of the next piece.
#ifndef HYDRANT_KERNELS_CUDA_DECODE_RING_CUH_
#define HYDRANT_KERNELS_CUDA_DECODE_RING_CUH_

#include <cuda_runtime.h>

#include "kernels/cuda/decode_products_mma.cuh"

namespace hydrant::cuda {

// Entries that a block attends to at once.
struct RingPiece {
  int count = 0;
  int passes = 0;                // over the entries; 0: there is no piece
  bool keys = false;             // the first pass is over keys, all others over values
  const PageIds* ids = nullptr;  // in shared memory, from the page of the first entry on
  int skew = 0;                  // entries of that page before it
};

template <DType kPageDType, int kDims>
class RingProducts : public MmaTile<kPageDType, kDims> {
  using Base = MmaTile<kPageDType, kDims>;
  static constexpr int kTiles = 3;  // of a warp's ring

 public:
  using Base::kTile;
  static constexpr int kBlocksPerSm = kDims <= 128 ? 3 : 2;  // that the registers leave room for
  static constexpr int kStep = kDecodeWarps * Base::kTile;   // entries of a tile of each warp
  static constexpr size_t kRingBytes = size_t{kDecodeWarps} * kTiles * Base::kTile * kDims * 2;

  // Passes over a piece's entries: the values once for each eight query heads.
  __device__ static int ValuePasses(int group) { return CeilDiv(group, Base::kGroup); }

  // `ring`: kRingBytes of shared memory, aligned to 16.
  __device__ RingProducts(const DecodeLaunch& launch, const DecodeUnit& unit,
                          const DecodeShared& shared, void* ring)
      : Base(launch, unit, shared),
        ring_(static_cast<uint4*>(ring) + warp_ * kTiles * kTileVectors) {}

  // The first two pieces, of which `current` is at work.
  __device__ void Start(const RingPiece& current, const RingPiece& next) {
    filled_ = current;
    next_ = next;
    Fill();
  }
  // The next piece is at work now, and this comes behind it. REQUIRES: all tiles of the piece
  // before have been used; so those of the present one are on their way.
  __device__ void Advance(const RingPiece& next) {
    next_ = next;
    Fill();
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
    for (int step = 0; step < u_.count; step += kStep) {
      const int tile = step + warp_ * kTile;
      WaitForTile();
      if (tile < u_.count) {
        StoreNewRow(u_.new_entry - u_.begin - tile, new_rows);
        multiply(tile);
      }
      __syncwarp();  // all lanes have read the tile
      use_ = After(use_);
      --ahead_;
      Fill();
    }
  }

  // Groups are as many as tiles: the last ahead_ - 1 need not be there yet.
  __device__ void WaitForTile() const {
    static_assert(kTiles == 3);
    if (ahead_ == 3) {
      WaitCopies<2>();
    } else if (ahead_ == 2) {
      WaitCopies<1>();
    } else {
      WaitCopies<0>();
    }
    __syncwarp();
  }

  // Begins copies until the ring is full or the next piece ends.
  __device__ void Fill() {
    while (ahead_ < kTiles) {
      if (pass_ >= filled_.passes) {
        if (next_.passes == 0) return;
        filled_ = next_;
        next_.passes = 0;
        pass_ = 0;
      }
      CopyTile(filled_.keys && pass_ == 0 ? l_.args.pages.keys : l_.args.pages.values,
               step_ + warp_ * kTile);
      CommitCopies();
      fill_ = After(fill_);
      ++ahead_;
      step_ += kStep;
      if (step_ < filled_.count) continue;
      step_ = 0;
      ++pass_;
    }
  }

  // What is read past the last entry is that entry once more: all numbers are finite.
  __device__ void CopyTile(const void* base, int first) const {
    if (first >= filled_.count) return;
    const int block_size = l_.args.pages.layout.block_size;
    uint4* tile = Tile(fill_);
#pragma unroll
    for (int i = lane_; i < kTileVectors; i += kWarpSize) {
      const int row = i / kChunks, chunk = i % kChunks;
      const int entry = filled_.skew + min(first + row, filled_.count - 1);
      const int page = l_.PageOf(entry);
      const auto slot =
          static_cast<uint32_t>(filled_.ids[page].data * block_size + entry - page * block_size);
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
      Tile(use_)[Place(row, chunk)] = make_uint4(words[0], words[1], words[2], words[3]);
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
    return 8 * chunk < head_dim_ ? Tile(use_)[Place(row, chunk)] : make_uint4(0, 0, 0, 0);
  }

  uint4* const ring_;  // [kTiles, kTile, kChunks], this warp's
  RingPiece filled_;   // the piece whose tiles' copies begin, in which pass, from which entry
  int pass_ = 0, step_ = 0;
  RingPiece next_;          // behind it; passes 0: none is known
  int fill_ = 0, use_ = 0;  // where the next copy goes, and where the tile at work lies
  int ahead_ = 0;           // tiles whose copies have begun and that have not been used
};

}  // namespace hydrant::cuda

#endif  // HYDRANT_KERNELS_CUDA_DECODE_RING_CUH_
