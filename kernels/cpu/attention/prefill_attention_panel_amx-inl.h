// The two products of a key panel with a query tile in AMX bf16 with fp32 sums: the
// interface of prefill_attention_panel-inl.h. Keys and values were rounded once for all
// query tiles. Included after amx_tiles-inl.h and prefill_attention_pairs-inl.h. REQUIRES:
// head_dim is a whole number of tiles.

namespace hydrant::cpu::HYDRANT_SIMD_NAMESPACE {

static_assert(kQueryTile == 2 * kLanes && kKeyPanel % kQueryTile == 0);

// Tiles of 16 rows of 64 bytes: 32 keys, or value columns, by the tile's queries.
//   0, 1   16 keys each
//   2, 3   16 queries each
//   4..7   their products, keys first: rows of kQueryTile lanes
HYDRANT_INLINE void ConfigureTiles() {
  TileConfig config;
  for (int t = 0; t < 8; ++t) {
    config.rows[t] = kLanes;
    config.row_bytes[t] = kLanes * sizeof(float);
  }
  Configure(config);
}

HYDRANT_INLINE void ZeroSums() {
  _tile_zero(4);
  _tile_zero(5);
  _tile_zero(6);
  _tile_zero(7);
}

// from, to: [2 * kLanes, kQueryTile].
HYDRANT_INLINE void LoadSums(const float* from) {
  constexpr int kStride = kQueryTile * static_cast<int>(sizeof(float));
  _tile_loadd(4, from, kStride);
  _tile_loadd(5, from + kLanes, kStride);
  _tile_loadd(6, from + kLanes * kQueryTile, kStride);
  _tile_loadd(7, from + kLanes * kQueryTile + kLanes, kStride);
}

HYDRANT_INLINE void StoreSums(float* to) {
  constexpr int kStride = kQueryTile * static_cast<int>(sizeof(float));
  _tile_stored(4, to, kStride);
  _tile_stored(5, to + kLanes, kStride);
  _tile_stored(6, to + kLanes * kQueryTile, kStride);
  _tile_stored(7, to + kLanes * kQueryTile + kLanes, kStride);
}

inline constexpr int kValueStride = kKeyPanel / 2;  // pairs per value column

HYDRANT_INLINE constexpr int KeyStride(int head_dim) { return Pairs(head_dim); }
HYDRANT_INLINE int64_t ValuesBefore(int key, int head_dim) { return TileValueWords(key, head_dim); }

HYDRANT_INLINE void ZeroRows(float* rows, int from, int to, int row_floats) {
  for (int i = from * row_floats; i < to * row_floats; i += kLanes) Store(rows + i, Zero());
}

// Keys [rows, pairs of head_dim], zero-padded to whole tiles.
HYDRANT_INLINE void RoundTileKeys(const float* keys, int rows, int head_dim, float* to) {
  RoundKeys(keys, rows, head_dim, to);
  ZeroRows(to, rows, TileRowsOf(rows), Pairs(head_dim));
}

// Values of a panel [head_dim, pairs of rows].
HYDRANT_INLINE void RoundColumns(const float* values, int rows, int head_dim, float* to) {
  for (int r = 0; r < rows; r += kPair) {
    for (int c = 0; c < head_dim; c += kLanes) {
      Vec pairs[kLanes];
      for (int i = 0; i < kLanes; ++i) {
        const int row = r + 2 * i;
        const float* at = values + static_cast<int64_t>(row) * head_dim + c;
        const Vec second = row + 1 < rows ? Load(at + head_dim) : Zero();
        pairs[i] = row < rows ? Vec{_mm512_castsi512_ps(PairUp(Load(at), second))} : Zero();
      }
      Transpose(pairs);
      for (int i = 0; i < kLanes; ++i) Store(to + (c + i) * kValueStride + r / 2, pairs[i]);
    }
  }
}

HYDRANT_INLINE PanelOperands TakePanel(const PrefillShape&, const float* k, const float* v, int,
                                       float*) {
  return {k, v};
}

// Tiles 4 to 7 += rows of a, a_stride floats apart, times the two lane vectors of b's
// rows, over `pairs` pairs.
HYDRANT_INLINE void AddTiles(const float* a, int a_stride, const float* b, int pairs) {
  const float* const below = a + kLanes * a_stride;
  const int a_bytes = a_stride * static_cast<int>(sizeof(float));
  constexpr int kLaneBytes = kQueryTile * static_cast<int>(sizeof(float));
  for (int i = 0; i < pairs; i += kLanes, b += kLanes * kQueryTile) {
    _tile_stream_loadd(0, a + i, a_bytes);
    _tile_loadd(2, b, kLaneBytes);
    _tile_dpbf16ps(4, 0, 2);
    _tile_loadd(3, b + kLanes, kLaneBytes);
    _tile_dpbf16ps(5, 0, 3);
    _tile_stream_loadd(1, below + i, a_bytes);
    _tile_dpbf16ps(6, 1, 2);
    _tile_dpbf16ps(7, 1, 3);
  }
}

void PanelLogits(const PrefillShape& shape, const PanelOperands& panel, int rows,
                 const float* queries, float* logits) {
  const int pairs = Pairs(shape.head_dim);
  const float scale = LogitScale(shape.scale);
  OrderMemory();
  for (int r = 0; r < rows; r += kPair) {
    float* const to = logits + r * kQueryTile;
    ZeroSums();
    AddTiles(panel.k + r * pairs, pairs, queries, pairs);
    StoreSums(to);
    for (int i = 0; scale != 1.0f && i < kPair * kQueryTile; i += kLanes)
      Store(to + i, hn::Mul(Load(to + i), Set(scale)));
  }
}

// Whether any query's maximum has risen: rare after the first panels.
HYDRANT_INLINE bool Decays(const float* decay) {
  const Mask one = hn::And(hn::Eq(Load(decay), Set(1.0f)), hn::Eq(Load(decay + kLanes), Set(1.0f)));
  return !hn::AllTrue(kFloats, one);
}

void PanelOutput(const PrefillShape& shape, const PanelOperands& panel, int rows,
                 const float* /*weights*/, const float* decay, float* rounded, float* out) {
  const int tile_rows = TileRowsOf(rows);
  ZeroRows(rounded, Pairs(rows), Pairs(tile_rows), kQueryTile);
  if (Decays(decay)) {
    for (int i = 0; i < shape.head_dim * kQueryTile; i += kLanes)
      Store(out + i, hn::Mul(Load(out + i), Load(decay + i % kQueryTile)));
  }
  OrderMemory();
  for (int c = 0; c < shape.head_dim; c += kPair) {
    float* const to = out + c * kQueryTile;
    LoadSums(to);
    AddTiles(panel.v + c * kValueStride, kValueStride, rounded, Pairs(tile_rows));
    StoreSums(to);
  }
}

}  // namespace hydrant::cpu::HYDRANT_SIMD_NAMESPACE
