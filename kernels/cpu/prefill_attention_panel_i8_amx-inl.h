// Logits of a panel of keys with a tile of queries in AMX's 8 bits: the same bits as
// prefill_attention_panel_i8-inl.h, whose words it gives another meaning. Included after
// prefill_amx_tiles-inl.h and prefill_attention_bytes-inl.h. Of head_dims that are a whole
// number of tiles. Reads kByteKeySlack rows of keys past a panel's last one, and drops what that
// gives.

namespace hydrant::cpu::HYDRANT_SIMD_NAMESPACE {

static_assert(kQueryTile == 2 * kLanes && kByteKeySlack >= kPair - 1);

// The products of kPair keys, as integers, become logits. lane_scales: [kQueryTile].
HYDRANT_INLINE void ScaleProducts(const float* keys, int words, const float* lane_scales,
                                  float* logits) {
  const int stride = words + 2;
  for (int r = 0; r < kPair; ++r, keys += stride, logits += kQueryTile) {
    const Vec scale = Set(keys[words]);
    const __m512i start = _mm512_set1_epi32(reinterpret_cast<const int32_t*>(keys)[words + 1]);
    for (int lane = 0; lane < kQueryTile; lane += kLanes) {
      const __m512i sum = _mm512_add_epi32(_mm512_loadu_si512(logits + lane), start);
      Store(logits + lane, Mul(ToFloat(sum), Mul(scale, Load(lane_scales + lane))));
    }
  }
}

void PanelLogits(const PrefillShape& shape, const PanelOperands& panel, int rows,
                 const float* queries, float* logits) {
  const int words = NumByteWords(shape.head_dim), stride = KeyStride(shape.head_dim);
  const int key_bytes = stride * static_cast<int>(sizeof(float));
  constexpr int kLaneBytes = kQueryTile * static_cast<int>(sizeof(float));
  OrderMemory();
  for (int r = 0; r < rows; r += kPair) {
    const float* const keys = panel.k + r * stride;
    ZeroSums();
    for (int w = 0; w < words; w += kLanes) {
      const float* const lanes = queries + w * kQueryTile;
      _tile_loadd(0, keys + w, key_bytes);
      _tile_loadd(2, lanes, kLaneBytes);
      _tile_dpbsud(4, 0, 2);
      _tile_loadd(3, lanes + kLanes, kLaneBytes);
      _tile_dpbsud(5, 0, 3);
      _tile_loadd(1, keys + kLanes * stride + w, key_bytes);
      _tile_dpbsud(6, 1, 2);
      _tile_dpbsud(7, 1, 3);
    }
    StoreSums(logits + r * kQueryTile);
    ScaleProducts(keys, words, queries + words * kQueryTile, logits + r * kQueryTile);
  }
}

// REQUIRES: never called, as no tile wants an output
void PanelOutput(const PrefillShape&, const PanelOperands&, int, const float*, const float*, float*,
                 float*) {
  __builtin_trap();
}

}  // namespace hydrant::cpu::HYDRANT_SIMD_NAMESPACE
