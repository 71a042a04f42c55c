// One part of one head: stores the new entry, computes logits, weights and unnormalised output.
// Included once per instruction set, after attention_softcap-inl.h.

namespace hydrant::cpu::HYDRANT_SIMD_NAMESPACE {

// Element offsets of a part's rows in the pool, padded so that whole quads of rows can be loaded.
// The padding repeats the last row, so unused slots are never read.
struct PartRows {
  int count = 0;
  int64_t offsets[kPartEntries];
};

HYDRANT_INLINE int64_t SlotOf(const DecodeArgs& shape, const DecodeHead& head, int entry) {
  return static_cast<int64_t>(head.blocks[entry / shape.block_size].data) * shape.block_size +
         entry % shape.block_size;
}

// Index of the entry's score.
HYDRANT_INLINE int64_t StateSlotOf(const DecodeArgs& shape, const DecodeHead& head, int entry) {
  return static_cast<int64_t>(head.blocks[entry / shape.block_size].state) * shape.block_size +
         entry % shape.block_size;
}

HYDRANT_INLINE float* LogWeightsAt(const DecodeArgs& shape, const DecodeHead& head, int entry) {
  return head.log_weights + head.blocks[entry / shape.block_size].state * shape.log_weight_stride +
         2 * (entry % shape.block_size);
}

HYDRANT_INLINE void FindRows(const DecodeArgs& shape, const DecodeHead& head, int part,
                             PartRows* rows) {
  const int begin = part * kPartEntries;
  const int left = head.num_entries - begin;
  rows->count = left < kPartEntries ? left : kPartEntries;
  int block = begin / shape.block_size;
  int slot = begin % shape.block_size;
  for (int i = 0; i < rows->count; ++i) {
    rows->offsets[i] =
        (static_cast<int64_t>(head.blocks[block].data) * shape.block_size + slot) * shape.head_dim;
    if (++slot == shape.block_size) {
      slot = 0;
      ++block;
    }
  }
  for (int i = rows->count; i % kLanes != 0; ++i) rows->offsets[i] = rows->offsets[i - 1];
}

// The row that begins at an element.
template <typename T>
HYDRANT_INLINE const T* RowAt(const void* rows, int64_t element) {
  return static_cast<const T*>(rows) + (kIsBlock<T> ? element / kBlockElements : element);
}

// Elements kFirst .. kFirst + kLanes - 1 of a row.
template <int kFirst, typename T>
HYDRANT_INLINE Vec LoadElements(const T* row) {
  if constexpr (kIsBlock<T>) {
    return LoadAs(row + kFirst / kBlockElements, kFirst % kBlockElements);
  } else {
    return LoadAs(row + kFirst);
  }
}

template <typename T>
HYDRANT_INLINE Vec LoadTail(const T* p, int count) {
  T padded[kLanes] = {};
  for (int i = 0; i < count; ++i) padded[i] = p[i];
  return LoadAs(padded);
}

// Elements d .. d + count - 1, count < kLanes. Block dtypes have no such tail.
template <typename T>
HYDRANT_INLINE Vec LoadTail(const T* row, int d, int count) {
  if constexpr (kIsBlock<T>) {
    return Zero();
  } else {
    return LoadTail(row + d, count);
  }
}

template <typename T>
HYDRANT_INLINE void StoreRow(const float* from, int head_dim, T* to) {
  int d = 0;
  for (; d + kLanes <= head_dim; d += kLanes) StoreAs(to + d, Load(from + d));
  if (d == head_dim) return;
  T padded[kLanes];
  StoreAs(padded, LoadTail(from + d, head_dim - d));
  for (int i = 0; d + i < head_dim; ++i) to[d + i] = padded[i];
}

template <typename T>
void StoreNewEntry(const DecodeArgs& shape, const DecodeHead& head) {
  const int64_t slot = SlotOf(shape, head, head.new_entry);
  const int64_t row = slot * shape.head_dim;
  if constexpr (kIsPacked<T>) {
    cpu::StorePageRow(shape.dtype, head.k, shape.head_dim, shape.keys, row);
    cpu::StorePageRow(shape.dtype, head.v, shape.head_dim, shape.values, row);
  } else {
    StoreRow(head.k, shape.head_dim, static_cast<T*>(shape.keys) + row);
    StoreRow(head.v, shape.head_dim, static_cast<T*>(shape.values) + row);
  }
  shape.positions[slot] = head.position;
  if (head.rule->ScoresEntries()) shape.scores[StateSlotOf(shape, head, head.new_entry)] = 0.0f;
  if (head.log_weights == nullptr) return;
  float* pair = LogWeightsAt(shape, head, head.new_entry);
  pair[0] = pair[1] = 0.0f;
}

// A head's pages are scattered, which defeats the hardware prefetcher at every block, so rows
// are prefetched explicitly.
inline constexpr int kRowsAhead = 16;
inline constexpr int kCacheLineBytes = 64;

// kLocality as in __builtin_prefetch: 3 for L1, 2 for L2.
template <int kLocality = 3, typename T>
HYDRANT_INLINE void PrefetchRow(const T* row, int head_dim) {
  const char* bytes = reinterpret_cast<const char*>(row);
  const int count =
      (kIsBlock<T> ? head_dim / kBlockElements : head_dim) * static_cast<int>(sizeof(T));
  for (int i = 0; i < count; i += kCacheLineBytes) __builtin_prefetch(bytes + i, 0, kLocality);
}

// Keys of the next part, prefetched while values are multiplied, when memory is idle.
struct KeysAhead {
  const void* keys = nullptr;
  PartRows rows;  // count 0: none

  template <typename T>
  HYDRANT_INLINE void Prefetch(int i, int head_dim) const {
    if (i < rows.count) PrefetchRow<2>(RowAt<T>(keys, rows.offsets[i]), head_dim);
  }
};

// Logits of kGroup query heads for every row of the part, in whole vectors of kLanes rows; -inf
// past the last row. Four rows are processed at a time, so that a query vector is loaded once for
// all four. Meanwhile the part's values, if given, are prefetched for Output().
template <int kGroup, typename T>
void Logits(const void* keys, const void* values, const PartRows& rows, int head_dim,
            const float* q, int64_t q_stride, float* logits, int64_t logit_stride) {
  constexpr int kStep = kIsBlock<T> ? kBlockElements : kLanes;  // a block's scale is loaded once
  const int whole = head_dim / kStep * kStep;
  for (int i = 0; i < rows.count; i += kLanes) {
    if (values != nullptr) {
      for (int r = i; r < i + kLanes; ++r) {
        if (r + kRowsAhead < rows.count)
          PrefetchRow(RowAt<T>(keys, rows.offsets[r + kRowsAhead]), head_dim);
        PrefetchRow(RowAt<T>(values, rows.offsets[r]), head_dim);
      }
    }
    Vec quads[kGroup][kLanes / 4];
    for (int quad = 0; quad < kLanes / 4; ++quad) {
      const T* row[4];
      Unroll<4>(HYDRANT_UNROLLED(r) { row[r] = RowAt<T>(keys, rows.offsets[i + quad * 4 + r]); });
      Vec acc[kGroup][4];
      Unroll<kGroup * 4>(HYDRANT_UNROLLED(j) { acc[j / 4][j % 4] = Zero(); });
      for (int d = 0; d < whole; d += kStep) {
        Unroll<kStep / kLanes>(HYDRANT_UNROLLED(v) {
          Vec query[kGroup];
          Unroll<kGroup>(
              HYDRANT_UNROLLED(g) { query[g] = Load(q + g * q_stride + d + v * kLanes); });
          Unroll<4>(HYDRANT_UNROLLED(r) {
            const Vec key = LoadElements<v * kLanes>(RowAt<T>(row[r], d));
            Unroll<kGroup>(
                HYDRANT_UNROLLED(g) { acc[g][r] = hn::MulAdd(query[g], key, acc[g][r]); });
          });
        });
      }
      if (whole < head_dim) {
        Unroll<4>(HYDRANT_UNROLLED(r) {
          const Vec key = LoadTail(row[r], whole, head_dim - whole);
          Unroll<kGroup>(HYDRANT_UNROLLED(g) {
            acc[g][r] = hn::MulAdd(Load(q + g * q_stride + whole), key, acc[g][r]);
          });
        });
      }
      Unroll<kGroup>(HYDRANT_UNROLLED(g) {
        quads[g][quad] = FoldQuad(Sum(), acc[g][0], acc[g][1], acc[g][2], acc[g][3]);
      });
    }
    const Mask live = FirstN(rows.count - i);
    for (int g = 0; g < kGroup; ++g)
      Store(logits + g * logit_stride + i,
            hn::IfThenElse(live, JoinQuads(Sum(), quads[g]), Set(-__builtin_inff())));
  }
}

// Converts the logits of one query head to exp(logit - maximum), in place; whole vectors.
HYDRANT_INLINE void Weights(float* logits, int count, float* max_out, float* sum_out) {
  Vec max = Load(logits);
  for (int i = kLanes; i < count; i += kLanes) max = hn::Max(max, Load(logits + i));
  const float top = ReduceMax(max);
  Vec sum = Zero();
  for (int i = 0; i < count; i += kLanes) {
    const Vec w = Exp(hn::Sub(Load(logits + i), Set(top)));
    Store(logits + i, w);
    sum = hn::Add(sum, w);
  }
  *max_out = top;
  *sum_out = ReduceAdd(sum);
}

// The log weights of a part's entries, zero-padded to a whole vector.
struct PartLogWeights {
  float numerators[kPartEntries];
  float denominators[kPartEntries];
};

HYDRANT_INLINE void FindLogWeights(const DecodeArgs& shape, const DecodeHead& head, int part,
                                   int count, PartLogWeights* found) {
  if (head.log_weights == nullptr) return;
  int i = 0;
  for (; i < count; ++i) {
    const float* pair = LogWeightsAt(shape, head, part * kPartEntries + i);
    found->numerators[i] = pair[0];
    found->denominators[i] = pair[1];
  }
  for (; i % kLanes != 0; ++i) found->numerators[i] = found->denominators[i] = 0.0f;
}

// Weights() of logit + log weight, written to `weights` (which may be `logits`). If all log weights
// are -infinity, the maximum is still finite and the weights are 0.
HYDRANT_INLINE void LogWeighted(const float* logits, const float* log_weights, int count,
                                float* weights, float* max_out, float* sum_out) {
  Vec max = Set(-1e30f);
  for (int i = 0; i < count; i += kLanes)
    max = hn::Max(max, hn::Add(Load(logits + i), Load(log_weights + i)));
  const float top = ReduceMax(max);
  Vec sum = Zero();
  for (int i = 0; i < count; i += kLanes) {
    const Vec w = Exp(hn::Sub(hn::Add(Load(logits + i), Load(log_weights + i)), Set(top)));
    Store(weights + i, w);
    sum = hn::Add(sum, w);
  }
  *max_out = top;
  *sum_out = ReduceAdd(sum);
}

// out[g, 0 .. kVecs * kLanes) = sum over the rows of weight[g, row] * value[row], from element
// `first` of each row. With kTail the columns are one vector with only `tail` elements.
template <int kGroup, int kVecs, bool kTail, typename T>
void WeightedValues(const void* values, const PartRows& rows, const KeysAhead* ahead, int first,
                    int tail, const float* weights, int64_t weight_stride, float* out,
                    int64_t out_stride) {
  Vec acc[kGroup][kVecs];
  Unroll<kGroup * kVecs>(HYDRANT_UNROLLED(j) { acc[j / kVecs][j % kVecs] = Zero(); });
  for (int i = 0; i < rows.count; ++i) {
    const T* row = RowAt<T>(values, rows.offsets[i] + first);
    if (ahead != nullptr) ahead->template Prefetch<T>(i, first + tail);
    Vec weight[kGroup];
    Unroll<kGroup>(HYDRANT_UNROLLED(g) { weight[g] = Set(weights[g * weight_stride + i]); });
    Unroll<kVecs>(HYDRANT_UNROLLED(c) {
      const Vec value = kTail ? LoadTail(row, 0, tail) : LoadElements<c * kLanes>(row);
      Unroll<kGroup>(HYDRANT_UNROLLED(g) { acc[g][c] = hn::MulAdd(weight[g], value, acc[g][c]); });
    });
  }
  Unroll<kGroup * kVecs>(HYDRANT_UNROLLED(j) {
    Store(out + j / kVecs * out_stride + j % kVecs * kLanes, acc[j / kVecs][j % kVecs]);
  });
}

template <int kGroup, typename T>
void Output(const void* values, const PartRows& rows, const KeysAhead* ahead, int head_dim,
            const float* weights, int64_t weight_stride, float* out, int64_t out_stride) {
  int d = 0;
  const auto columns = [&](auto vecs, auto tail) {
    WeightedValues<kGroup, decltype(vecs)::value, decltype(tail)::value, T>(
        values, rows, d == 0 ? ahead : nullptr, d, head_dim - d, weights, weight_stride, out + d,
        out_stride);
    d += decltype(vecs)::value * kLanes;
  };
  while (d + kDimTile * kLanes <= head_dim) columns(Int<kDimTile>(), Int<0>());
  if (d + 2 * kLanes <= head_dim) columns(Int<2>(), Int<0>());
  if (d + kLanes <= head_dim) columns(Int<1>(), Int<0>());
  if (d < head_dim) columns(Int<1>(), Int<1>());
}

// The rotated keys of a rolling head's part.
struct RotatedKeys {
  const float* data = nullptr;  // null: the pages' keys are used directly
  PartRows rows;
};

// Rotates `row` back by a position in place, as RotatedBack(); vectorised for pairs of halves.
HYDRANT_INLINE void RotateBack(const Rotary& rotary, int32_t position, float* row) {
  const int half = rotary.rotary_dim / 2;
  const float* cos = rotary.cos + static_cast<int64_t>(position) * half;
  const float* sin = rotary.sin + static_cast<int64_t>(position) * half;
  const auto rotate = [&](int pair, float* first, float* second) {
    const float a = *first, b = *second;
    *first = a * cos[pair] + b * sin[pair];
    *second = b * cos[pair] - a * sin[pair];
  };
  int pair = 0;
  if (rotary.interleaved) {
    for (; pair < half; ++pair) rotate(pair, row + 2 * pair, row + 2 * pair + 1);
    return;
  }
  for (; pair + kLanes <= half; pair += kLanes) {
    const Vec a = Load(row + pair), b = Load(row + half + pair);
    const Vec c = Load(cos + pair), s = Load(sin + pair);
    Store(row + pair, hn::MulAdd(a, c, hn::Mul(b, s)));
    Store(row + half + pair, hn::Sub(hn::Mul(b, c), hn::Mul(a, s)));
  }
  for (; pair < half; ++pair) rotate(pair, row + pair, row + half + pair);
}

// The stored key in the row that begins at an element; whole vectors.
template <typename T>
HYDRANT_INLINE void LoadKey(const DecodeArgs& shape, int64_t element, float* key) {
  if (kIsBlock<T>) return cpu::LoadPageRow(shape.dtype, shape.keys, element, shape.head_dim, key);
  const T* row = RowAt<T>(shape.keys, element);
  int d = 0;
  for (; d + kLanes <= shape.head_dim; d += kLanes)
    Store(key + d, LoadElements<0>(RowAt<T>(row, d)));
  if (d < shape.head_dim) Store(key + d, LoadTail(row, d, shape.head_dim - d));
}

// Updates the ranks of a rolling head's part, and rotates its keys into `scratch`
// [kPartEntries, RoundUpDim(head_dim)].
template <typename T>
void RotateKeys(const DecodeArgs& shape, const DecodeHead& head, int part, const PartRows& rows,
                float* scratch, RotatedKeys* rotated) {
  const int dim = RoundUpDim(shape.head_dim);
  rotated->data = scratch;
  rotated->rows.count = rows.count;
  for (int i = 0; i < rows.count; ++i) {
    int32_t* rank = shape.positions + rows.offsets[i] / shape.head_dim;
    if (*rank > head.rank_above && part * kPartEntries + i != head.new_entry) --*rank;
    float* row = scratch + i * dim;
    LoadKey<T>(shape, rows.offsets[i], row);
    RotateBack(shape.rotary, head.num_entries - 1 - *rank, row);
    rotated->rows.offsets[i] = static_cast<int64_t>(i) * dim;
  }
  for (int i = rows.count; i % kLanes != 0; ++i)
    rotated->rows.offsets[i] = rotated->rows.offsets[i - 1];
}

// Attends with kGroup of the head's query heads, from head g on.
template <int kGroup, typename T>
void AttendGroup(const DecodeArgs& shape, const DecodeHead& head, int part, const PartRows& rows,
                 const RotatedKeys& rotated, const PartLogWeights& log_weights,
                 const KeysAhead& ahead, const float* q, int g) {
  const int64_t dim = RoundUpDim(shape.head_dim);
  float* weights = head.weights + g * head.weight_stride + part * kPartEntries;
  if (rotated.data != nullptr) {
    Logits<kGroup, float>(rotated.data, nullptr, rotated.rows, shape.head_dim, q + g * dim, dim,
                          weights, head.weight_stride);
  } else {
    Logits<kGroup, T>(shape.keys, g == 0 ? shape.values : nullptr, rows, shape.head_dim,
                      q + g * dim, dim, weights, head.weight_stride);
  }
  for (int i = 0; i < kGroup; ++i) {
    float* logits = weights + i * head.weight_stride;
    const int row = part * shape.group + g + i;
    if (shape.softcap != 0.0f) CapLogits(shape.softcap, rows.count, -__builtin_inff(), logits);
    if (head.log_weights == nullptr) {
      Weights(logits, rows.count, &head.part_max[row], &head.part_sum[row]);
      continue;
    }
    float* shares = head.shares + (logits - head.weights);
    float numerator_sum = 0.0f;  // unused
    LogWeighted(logits, log_weights.denominators, rows.count, shares, &head.part_max[row],
                &head.part_sum[row]);
    LogWeighted(logits, log_weights.numerators, rows.count, logits, &head.part_numerator_max[row],
                &numerator_sum);
  }
  Output<kGroup, T>(shape.values, rows, g == 0 ? &ahead : nullptr, shape.head_dim, weights,
                    head.weight_stride, head.part_out + (part * shape.group + g) * dim, dim);
}

template <typename T>
void AttendPartOf(const DecodeArgs& shape, const DecodePart& of_head, const DecodePart& next,
                  float* q) {
  const DecodeHead& head = *of_head.head;
  const int part = of_head.part;
  if (head.new_entry / kPartEntries == part) StoreNewEntry<T>(shape, head);
  PartRows rows;
  FindRows(shape, head, part, &rows);
  KeysAhead ahead;
  ahead.keys = shape.keys;
  ahead.rows.count = 0;
  if (next.head != nullptr) FindRows(shape, *next.head, next.part, &ahead.rows);
  PartLogWeights log_weights;
  FindLogWeights(shape, head, part, rows.count, &log_weights);
  const int dim = RoundUpDim(shape.head_dim);
  RotatedKeys rotated;
  if (head.rule->rolling) RotateKeys<T>(shape, head, part, rows, q + shape.group * dim, &rotated);
  const bool transformed = IsTransformed(shape.dtype);
  const float scale = transformed && !head.rule->rolling ? shape.scale * kFromPage : shape.scale;
  for (int g = 0; g < shape.group; ++g) {
    for (int d = 0; d < dim; ++d)
      q[g * dim + d] = d < shape.head_dim ? head.q[g * shape.head_dim + d] * scale : 0.0f;
    // The keys of rolling heads are already transformed back.
    if (transformed && !head.rule->rolling) cpu::HadamardTransform(shape.head_dim, q + g * dim);
  }
  int g = 0;
  for (; g + kGroupTile <= shape.group; g += kGroupTile)
    AttendGroup<kGroupTile, T>(shape, head, part, rows, rotated, log_weights, ahead, q, g);
  switch (shape.group - g) {
    case 3:
      return AttendGroup<3, T>(shape, head, part, rows, rotated, log_weights, ahead, q, g);
    case 2:
      return AttendGroup<2, T>(shape, head, part, rows, rotated, log_weights, ahead, q, g);
    case 1:
      return AttendGroup<1, T>(shape, head, part, rows, rotated, log_weights, ahead, q, g);
    default:
      return;
  }
}

void AttendPart(const DecodeArgs& shape, const DecodePart& part, const DecodePart& next,
                float* scratch) {
  switch (shape.dtype) {
    case DType::kF16:
      return AttendPartOf<F16>(shape, part, next, scratch);
    case DType::kBF16:
      return AttendPartOf<BF16>(shape, part, next, scratch);
    case DType::kE4M3:
      return AttendPartOf<E4M3>(shape, part, next, scratch);
    case DType::kQ8_0:
      return AttendPartOf<Q8Block>(shape, part, next, scratch);
    case DType::kQ4_0:
      return AttendPartOf<Q4Block>(shape, part, next, scratch);
    default:
      return AttendPartOf<float>(shape, part, next, scratch);
  }
}

}  // namespace hydrant::cpu::HYDRANT_SIMD_NAMESPACE
