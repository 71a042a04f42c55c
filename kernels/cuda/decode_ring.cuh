// Ring buffer that prefetches tiles of keys and values from pages to shared memory, so that the
// memory stays busy while a block computes softmax weights, joins its warps' sums and scores its
// entries. Each warp has its own ring, and only that warp waits for it. Tiles arrive in order of
// use: a piece's keys, its values, then the next piece.
#ifndef HYDRANT_KERNELS_CUDA_DECODE_RING_CUH_
#define HYDRANT_KERNELS_CUDA_DECODE_RING_CUH_

#include <cuda_runtime.h>

#include "kernels/cuda/decode_tiles.cuh"
#include "kernels/cuda/decode_work.cuh"

namespace hydrant::cuda {

// The pieces that a block's tiles are copied from, in shared memory: the current piece and the
// next ones, in a ring.
struct RingPieces {
  static constexpr int kPieces = 3;

  WorkPiece* pieces;  // [kPieces]
  PageIds* ids;       // [kPieces, chunk_pages], beginning with the page of a piece's first entry

  __device__ static int After(int index) { return index + 1 == kPieces ? 0 : index + 1; }
  __device__ PageIds* IdsOf(const DecodeLaunch& launch, int index) const {
    return ids + index * launch.chunk_pages;
  }
};

// State of a warp's ring, kept from piece to piece.
struct RingState {
  int piece = 0;           // piece to copy tiles of next,
  int pass = 0, step = 0;  // its pass and its entry
  int known = 1;           // known pieces after it
  int fill = 0, use = 0;   // ring slots of the next copy and of the current tile
  int ahead = 0;           // tiles copied or in flight, not yet used
};

// The products of one piece. Tile: see decode_tiles.cuh.
template <typename Tile>
class RingProducts : public Tile {
  // A warp's ring has a fixed number of bytes for all types, but at most kMaxTiles tiles.
  static constexpr int kMaxTiles = 8;
  static constexpr int kBytesOfWarp = Tile::kDimsOf <= 128 ? 12 << 10 : 24 << 10;
  static constexpr int kTiles =
      kBytesOfWarp / Tile::kTileBytes < kMaxTiles ? kBytesOfWarp / Tile::kTileBytes : kMaxTiles;

 public:
  using Tile::kTile;
  static constexpr int kBlocksPerSm = Tile::kDimsOf <= 128 ? 3 : 2;  // that the registers allow
  static constexpr int kStep = kDecodeWarps * kTile;                 // entries of one tile per warp
  static constexpr size_t kRingBytes = size_t{kDecodeWarps} * kTiles * Tile::kTileBytes;

  // `ring`: kRingBytes of shared memory, aligned to 16.
  __device__ RingProducts(const DecodeLaunch& launch, const DecodeUnit& unit,
                          const DecodeShared& shared, const RingPieces& pieces, void* ring,
                          RingState* state)
      : Tile(launch, unit, shared),
        pieces_(pieces),
        ring_(static_cast<unsigned char*>(ring) + warp_ * kTiles * Tile::kTileBytes),
        at_(*state) {}

  // Starts copies until the ring is full or no piece is known.
  __device__ void Fill() {
    while (at_.ahead < kTiles) {
      const WorkPiece& piece = pieces_.pieces[at_.piece];
      const bool is_work = piece.unit.count > 0;  // else the piece has no rule
      const int key_passes = is_work && !piece.rule.rolling ? 1 : 0;
      const int passes = key_passes + (l_.group + Tile::kGroup - 1) / Tile::kGroup;
      if (!is_work || at_.pass >= passes) {
        if (at_.known == 0) return;
        --at_.known;
        at_.piece = RingPieces::After(at_.piece);
        at_.pass = 0;
        continue;
      }
      const int first = at_.step + warp_ * kTile;
      if (first < piece.unit.count)
        this->Copy(piece.unit, pieces_.IdsOf(l_, at_.piece) - l_.PageOf(piece.unit.begin), first,
                   at_.pass < key_passes ? l_.args.pages.keys : l_.args.pages.values,
                   TileAt(at_.fill));
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
    ForEachTile(this->l_.args.k,
                [&](int first, const void* tile) { this->KeysTimesQueries(first, tile); });
  }

  __device__ void Values(int g) {
    typename Tile::Sums sums = {};
    ForEachTile(this->l_.args.v,
                [&](int first, const void* tile) { this->AddValues(g, first, tile, sums); });
    this->StoreSums(sums);
  }

 private:
  using Tile::head_dim_;
  using Tile::l_;
  using Tile::u_;
  using Tile::warp_;

  __device__ void* TileAt(int slot) const { return ring_ + slot * Tile::kTileBytes; }
  __device__ static int After(int slot) { return slot + 1 == kTiles ? 0 : slot + 1; }

  // Calls multiply(first entry, tile) for each step of the piece, once the warp's tile has
  // arrived. The new entry's row is written into its tile: the copy may have started before the
  // row was in its page.
  template <typename Multiply>
  __device__ void ForEachTile(const float* new_rows, Multiply multiply) {
    const int count = u_.count, new_entry = u_.new_entry - u_.begin;
    for (int first = warp_ * kTile; first < count + warp_ * kTile; first += kStep) {
      WaitForTile();
      if (first < count) {
        void* const tile = TileAt(at_.use);
        if (new_entry >= first && new_entry < first + kTile) {
          this->StoreNewRow(new_entry - first, new_rows + static_cast<size_t>(u_.unit) * head_dim_,
                            tile);
          __syncwarp();
        }
        multiply(first, tile);
      }
      __syncwarp();  // all lanes have read the tile
      at_.use = After(at_.use);
      --at_.ahead;
      Fill();
    }
  }

  // One copy group per tile: the last `ahead` - 1 may still be in flight.
  __device__ void WaitForTile() const {
    WaitForAllBut<kTiles - 1>(at_.ahead - 1);
    __syncwarp();
  }
  template <int kPending>
  __device__ static void WaitForAllBut(int pending) {
    if (kPending == 0 || pending == kPending) {
      WaitCopies<kPending>();
    } else if constexpr (kPending > 0) {
      WaitForAllBut<kPending - 1>(pending);
    }
  }

  const RingPieces& pieces_;
  unsigned char* const ring_;  // [kTiles, kTileBytes], this warp's
  RingState& at_;
};

}  // namespace hydrant::cuda

#endif  // HYDRANT_KERNELS_CUDA_DECODE_RING_CUH_
