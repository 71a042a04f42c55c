#include "tools/eval/anatomy.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/run/forward/rope_table.h"
#include "kernels/check.h"
#include "kernels/dequantize.h"
#include "kernels/status_macros.h"

namespace hydrant::eval {
namespace {

constexpr int kQueriesATask = 32;
constexpr int kRowsOfLogits = 64;

std::vector<float> Floats(const TensorView& tensor) {
  std::vector<float> values(tensor.NumElements());
  const int64_t cols = tensor.shape.back();
  std::vector<uint8_t> row(BytesOf(tensor.dtype, cols));
  for (int64_t i = 0; i < tensor.NumElements() / cols; ++i) {
    if (tensor.maker != nullptr) tensor.maker->Make(tensor.first_made + i, row.data());
    DequantizeRow(tensor.dtype,
                  tensor.maker != nullptr ? row.data() : &tensor.bytes[i * row.size()], cols,
                  &values[i * cols]);
  }
  return values;
}

void Softmax(double* logits, int count) {
  const double top = *std::max_element(logits, logits + count);
  double sum = 0;
  for (int j = 0; j < count; ++j) sum += logits[j] = std::exp(logits[j] - top);
  for (int j = 0; j < count; ++j) logits[j] /= sum;
}

// Moves the weight of hidden keys to the visible ones.
void Hide(const uint8_t* visible, int count, double* weights) {
  double sum = 0;
  for (int j = 0; j < count; ++j) sum += weights[j] = visible[j] != 0 ? weights[j] : 0.0;
  HYDRANT_CHECK(sum > 0);
  for (int j = 0; j < count; ++j) weights[j] /= sum;
}

// Four rows at a time, as a sum kept in memory would be stored and reloaded once per row.
constexpr int kRowsAtOnce = 4;

// sum[i] += x[0] rows[0][i] + .. + x[3] rows[3][i]
template <typename T>
void AddRows(const double* x, const T* const* rows, int n, double* sum) {
  const T *a = rows[0], *b = rows[1], *c = rows[2], *d = rows[3];
  for (int i = 0; i < n; ++i) sum[i] += x[0] * a[i] + x[1] * b[i] + x[2] * c[i] + x[3] * d[i];
}

void WeighValues(const double* weights, int count, const float* values, int head_dim, float* out) {
  std::vector<double> sum(head_dim, 0.0);
  double x[kRowsAtOnce];
  const float* rows[kRowsAtOnce];
  int waiting = 0;
  const auto add = [&] {
    for (; waiting < kRowsAtOnce; ++waiting) {
      x[waiting] = 0;
      rows[waiting] = values;
    }
    AddRows(x, rows, head_dim, sum.data());
    waiting = 0;
  };
  for (int j = 0; j < count; ++j) {
    if (weights[j] == 0.0) continue;
    x[waiting] = weights[j];
    rows[waiting++] = values + int64_t{j} * head_dim;
    if (waiting == kRowsAtOnce) add();
  }
  if (waiting > 0) add();
  std::copy(sum.begin(), sum.end(), out);
}

}  // namespace

GroupAttention::GroupAttention(const float* keys, int n, int head_dim)
    : n_(n), head_dim_(head_dim), keys_(static_cast<size_t>(n) * head_dim) {
  for (int j = 0; j < n; ++j) {
    for (int c = 0; c < head_dim; ++c)
      keys_[static_cast<size_t>(c) * n + j] = keys[static_cast<size_t>(j) * head_dim + c];
  }
}

void GroupAttention::Weights(const float* query, int count, double* weights) const {
  std::fill(weights, weights + count, 0.0);
  const double scale = 1.0 / std::sqrt(head_dim_);
  int c = 0;
  for (; c + kRowsAtOnce <= head_dim_; c += kRowsAtOnce) {
    double x[kRowsAtOnce];
    const double* rows[kRowsAtOnce];
    for (int i = 0; i < kRowsAtOnce; ++i) {
      x[i] = query[c + i] * scale;
      rows[i] = &keys_[static_cast<size_t>(c + i) * n_];
    }
    AddRows(x, rows, count, weights);
  }
  for (; c < head_dim_; ++c) {
    const double* row = &keys_[static_cast<size_t>(c) * n_];
    for (int j = 0; j < count; ++j) weights[j] += query[c] * scale * row[j];
  }
  Softmax(weights, count);
}

namespace {

bool ComputesAsLlama(const ModelConfig& c) {
  const bool plain_norms = c.norm == NormKind::kRms && c.norm_placement == NormPlacement::kBefore &&
                           c.qk_norm == QkNorm::kNone;
  const bool no_biases = !c.biases.qkv && !c.biases.attention_output && !c.biases.feed_forward;
  const bool swiglu = c.gated && c.activation == Activation::kSilu && !c.parallel_residual &&
                      !c.experts.has_value();
  const bool whole_rope = c.layer_kinds.empty() && c.RotaryDim() == c.head_dim &&
                          !c.learned_positions && c.rope.attention_factor == 1.0;
  const bool no_scales = !c.attention_scale.has_value() && c.embedding_scale == 1.0 &&
                         c.residual_scale == 1.0 && c.logit_scale == 1.0;
  return plain_norms && no_biases && swiglu && whole_rope && no_scales;
}

}  // namespace

PlainForward::PlainForward(std::shared_ptr<const ModelSource> source,
                           std::unique_ptr<Backend> backend, int num_threads)
    : source_(std::move(source)), backend_(std::move(backend)), threads_(num_threads) {}

absl::StatusOr<std::unique_ptr<PlainForward>> PlainForward::Create(
    std::shared_ptr<const ModelSource> source, int num_threads) {
  const ModelConfig& config = source->config();
  if (!ComputesAsLlama(config)) {
    return absl::UnimplementedError(
        absl::StrCat("the plain forward pass knows what Llama computes alone, and this model is ",
                     config.architecture));
  }
  // Batch-invariant mode is also more exact: it does not quantise activations to 8 bits.
  auto backend = CreateBackend("cpu", {.num_threads = num_threads, .batch_invariant = true});
  if (!backend.ok()) backend = CreateBackend("reference", {.num_threads = num_threads});
  if (!backend.ok()) return backend.status();
  std::unique_ptr<PlainForward> forward(
      new PlainForward(std::move(source), *std::move(backend), num_threads));
  HYDRANT_RETURN_IF_ERROR(forward->Load());
  return forward;
}

absl::Status PlainForward::Load() {
  HYDRANT_ASSIGN_OR_RETURN(const auto embedding, source_->Embedding());
  if (embedding.bytes.empty())
    return absl::UnimplementedError("the plain forward pass wants a model with weights");
  const auto pack = [&](const TensorView& tensor) {
    const WeightPart part = PartOf(tensor);
    return backend_->PackWeight({&part, 1}, WeightDType::kStored);
  };
  HYDRANT_ASSIGN_OR_RETURN(embedding_, pack(embedding));
  if (!config().tied_embeddings) {
    HYDRANT_ASSIGN_OR_RETURN(const auto output, source_->Output());
    HYDRANT_ASSIGN_OR_RETURN(output_, pack(output));
  }
  HYDRANT_ASSIGN_OR_RETURN(const auto norm, source_->FinalNorm());
  final_norm_ = Floats(norm);
  frequencies_ = RopeFrequencies(config().rope, config().RotaryDim(), config().max_context);
  for (int layer = 0; layer < config().num_layers; ++layer) {
    HYDRANT_RETURN_IF_ERROR(LoadLayer(layer));
  }
  return absl::OkStatus();
}

absl::Status PlainForward::LoadLayer(int layer) {
  HYDRANT_ASSIGN_OR_RETURN(const auto tensors, source_->Layer(layer));
  Layer loaded = {.attn_norm = Floats(tensors.attn_norm),
                  .ffn_norm = Floats(tensors.ffn_norm),
                  .qkv = nullptr,
                  .wo = nullptr,
                  .gate_up = nullptr,
                  .down = nullptr,
                  .wo_of_head = {}};
  const auto pack = [&](std::span<const WeightPart> parts, WeightDType dtype,
                        std::unique_ptr<Weight>* into) -> absl::Status {
    HYDRANT_ASSIGN_OR_RETURN(*into, backend_->PackWeight(parts, dtype));
    return absl::OkStatus();
  };
  const LayerTensors& t = tensors;
  const std::vector<WeightPart> qkv = {PartOf(t.wq), PartOf(t.wk), PartOf(t.wv)};
  const std::vector<WeightPart> wo = {PartOf(t.wo)}, down = {PartOf(t.down)};
  const std::vector<WeightPart> gate_up = {PartOf(t.gate), PartOf(t.up)};
  absl::Status status = pack(qkv, WeightDType::kStored, &loaded.qkv);
  status.Update(pack(wo, WeightDType::kStored, &loaded.wo));
  status.Update(pack(gate_up, WeightDType::kStored, &loaded.gate_up));
  status.Update(pack(down, WeightDType::kStored, &loaded.down));
  // Splits W_O into the columns of each head.
  const std::vector<float> columns = Floats(t.wo);
  const int hidden = config().hidden_size, d = config().head_dim;
  std::vector<float> of_head(static_cast<size_t>(hidden) * d);
  for (int head = 0; head < config().num_heads; ++head) {
    for (int row = 0; row < hidden; ++row)
      std::copy_n(&columns[static_cast<size_t>(row) * config().QDim() + head * d], d,
                  &of_head[static_cast<size_t>(row) * d]);
    const WeightPart part = {
        .dtype = DType::kF32, .data = of_head.data(), .rows = hidden, .cols = d};
    loaded.wo_of_head.emplace_back();
    status.Update(pack({&part, 1}, WeightDType::kFloat32, &loaded.wo_of_head.back()));
  }
  layers_.push_back(std::move(loaded));
  return status;
}

std::vector<float> PlainForward::Multiply(const Weight& weight, std::span<const float> x) {
  const int m = static_cast<int>(x.size()) / weight.cols();
  std::vector<float> y(static_cast<size_t>(m) * weight.rows());
  backend_->Matmul({.x = x.data(), .m = m, .weight = &weight, .y = y.data()});
  return y;
}

std::vector<float> PlainForward::Normalised(std::span<const float> x,
                                            const std::vector<float>& weight) const {
  const size_t n = weight.size();
  std::vector<float> y(x.size());
  for (size_t row = 0; row < x.size(); row += n) {
    double squares = 0;
    for (size_t i = 0; i < n; ++i) squares += static_cast<double>(x[row + i]) * x[row + i];
    const double scale =
        1.0 / std::sqrt(squares / static_cast<double>(n) + source_->config().norm_eps);
    for (size_t i = 0; i < n; ++i) y[row + i] = static_cast<float>(x[row + i] * scale * weight[i]);
  }
  return y;
}

// RoFormer (arXiv 2104.09864), section 3.2.2.
void PlainForward::Rotate(float* head, int position) const {
  const int pairs = static_cast<int>(frequencies_.size());
  const bool interleaved = source_->config().rope_pairing == RopePairing::kInterleaved;
  for (int i = 0; i < pairs; ++i) {
    float& a = head[interleaved ? 2 * i : i];
    float& b = head[interleaved ? 2 * i + 1 : i + pairs];
    const double angle = position * frequencies_[i];
    const double x = a, y = b;
    a = static_cast<float>(x * std::cos(angle) - y * std::sin(angle));
    b = static_cast<float>(x * std::sin(angle) + y * std::cos(angle));
  }
}

// Appends the rows of a projection, sorted by head, to those of the earlier pass.
void PlainForward::StoreHeads(int layer, const std::vector<float>& qkv, const Activations* before,
                              Activations* activations) {
  const int d = activations->head_dim, first = activations->first, n = activations->tokens;
  const int width = (activations->heads + 2 * activations->kv_heads) * d;
  for (int head = 0; head < activations->kv_heads && first > 0; ++head) {
    const size_t to = (static_cast<size_t>(layer) * activations->kv_heads + head) * n * d;
    std::copy_n(before->Keys(layer, head), first * d, &activations->keys[to]);
    std::copy_n(before->Values(layer, head), first * d, &activations->values[to]);
  }
  threads_.ParallelFor(n - first, [&](int row, int /*thread*/) {
    const int token = first + row;
    const float* projected = &qkv[static_cast<size_t>(row) * width];
    for (int head = 0; head < activations->heads; ++head) {
      float* query = const_cast<float*>(activations->Query(layer, head, token));
      std::copy_n(projected + head * d, d, query);
      Rotate(query, token);
    }
    for (int head = 0; head < activations->kv_heads; ++head) {
      const size_t to =
          ((static_cast<size_t>(layer) * activations->kv_heads + head) * n + token) * d;
      std::copy_n(projected + (activations->heads + head) * d, d, &activations->keys[to]);
      std::copy_n(projected + (activations->heads + activations->kv_heads + head) * d, d,
                  &activations->values[to]);
      Rotate(&activations->keys[to], token);
    }
  });
}

void PlainForward::Attend(int layer, const AttentionMask& visible, Activations* activations) {
  const int d = activations->head_dim, n = activations->tokens, group = activations->Group();
  const int rows = activations->Rows();
  // A mask is called for the queries of a head in order, so a head is then a single task.
  const int queries = visible ? rows : kQueriesATask;
  const int tasks = (rows + queries - 1) / queries;
  std::vector<GroupAttention> heads;
  heads.reserve(activations->kv_heads);
  for (int head = 0; head < activations->kv_heads; ++head)
    heads.emplace_back(activations->Keys(layer, head), n, d);
  threads_.ParallelFor(tasks * activations->kv_heads, [&](int task, int /*thread*/) {
    const int kv_head = task % activations->kv_heads;
    const int begin = activations->first + task / activations->kv_heads * queries;
    std::vector<double> weights;
    std::vector<uint8_t> seen;
    for (int query = begin; query < std::min(n, begin + queries); ++query) {
      const int count = query + 1;
      weights.resize(static_cast<size_t>(group) * count);
      for (int g = 0; g < group; ++g)
        heads[kv_head].Weights(activations->Query(layer, kv_head * group + g, query), count,
                               &weights[static_cast<size_t>(g) * count]);
      if (visible) {
        seen.assign(weights.size(), 1);
        visible(layer, kv_head, query, weights, seen);
        for (int g = 0; g < group; ++g)
          Hide(&seen[static_cast<size_t>(g) * count], count,
               &weights[static_cast<size_t>(g) * count]);
      }
      for (int g = 0; g < group; ++g) {
        const size_t row = static_cast<size_t>(layer) * rows + query - activations->first;
        WeighValues(&weights[static_cast<size_t>(g) * count], count,
                    activations->Values(layer, kv_head), d,
                    &activations->attended[(row * activations->heads + kv_head * group + g) * d]);
      }
    }
  });
}

void PlainForward::FeedForward(const Layer& layer, std::vector<float>* hidden) {
  const std::vector<float> both = Multiply(*layer.gate_up, Normalised(*hidden, layer.ffn_norm));
  const size_t width = config().intermediate_size, rows = both.size() / (2 * width);
  std::vector<float> inner(rows * width);
  for (size_t row = 0; row < rows; ++row) {
    for (size_t i = 0; i < width; ++i) {
      const float gate = both[2 * row * width + i];
      inner[row * width + i] = gate / (1.0f + std::exp(-gate)) * both[(2 * row + 1) * width + i];
    }
  }
  const std::vector<float> added = Multiply(*layer.down, inner);
  for (size_t i = 0; i < added.size(); ++i) (*hidden)[i] += added[i];
}

Activations PlainForward::Read(std::span<const TokenId> tokens, const AttentionMask& visible,
                               const Activations* before, int first, int layers) {
  HYDRANT_CHECK(first == 0 || (before != nullptr && before->tokens >= first));
  Activations activations;
  activations.layers = layers > 0 ? layers : config().num_layers;
  activations.heads = config().num_heads;
  activations.kv_heads = config().num_kv_heads;
  activations.head_dim = config().head_dim;
  activations.tokens = static_cast<int>(tokens.size());
  activations.first = first;
  const size_t rows = activations.Rows(), n = tokens.size(), l = activations.layers;
  activations.queries.resize(l * config().QDim() * rows);
  activations.keys.resize(l * config().KvDim() * n);
  activations.values.resize(activations.keys.size());
  activations.attended.resize(activations.queries.size());
  std::vector<float> hidden(rows * config().hidden_size);
  backend_->Embed({.ids = tokens.data() + first,
                   .m = static_cast<int>(rows),
                   .table = embedding_.get(),
                   .out = hidden.data()});
  for (int i = 0; i < activations.layers; ++i) {
    const Layer& layer = layers_[i];
    // Keys are looked up at the same place in `before`: it has the same layers and tokens.
    StoreHeads(i, Multiply(*layer.qkv, Normalised(hidden, layer.attn_norm)), before, &activations);
    Attend(i, visible, &activations);
    const size_t width = rows * config().QDim();
    const std::vector<float> added = Output(i, {&activations.attended[i * width], width});
    for (size_t j = 0; j < added.size(); ++j) hidden[j] += added[j];
    FeedForward(layer, &hidden);
  }
  activations.hidden = Normalised(hidden, final_norm_);
  return activations;
}

std::vector<float> PlainForward::Logits(const Activations& activations, int token) {
  const size_t width = config().hidden_size;
  return Multiply(output_ ? *output_ : *embedding_,
                  {&activations.hidden[(token - activations.first) * width], width});
}

std::vector<double> PlainForward::NegativeLogLikelihoods(const Activations& activations,
                                                         std::span<const TokenId> tokens) {
  const size_t width = config().hidden_size, vocab = config().vocab_size;
  std::vector<double> nll(std::max(0, activations.Rows() - 1));
  for (size_t begin = 0; begin < nll.size(); begin += kRowsOfLogits) {
    const size_t rows = std::min<size_t>(kRowsOfLogits, nll.size() - begin);
    const std::vector<float> logits = Multiply(output_ ? *output_ : *embedding_,
                                               {&activations.hidden[begin * width], rows * width});
    threads_.ParallelFor(static_cast<int>(rows), [&](int row, int /*thread*/) {
      const float* of_row = &logits[row * vocab];
      const double top = *std::max_element(of_row, of_row + vocab);
      double sum = 0;
      for (size_t i = 0; i < vocab; ++i) sum += std::exp(of_row[i] - top);
      nll[begin + row] = std::log(sum) + top - of_row[tokens[activations.first + begin + row + 1]];
    });
  }
  return nll;
}

std::vector<float> PlainForward::Output(int layer, std::span<const float> x) {
  return Multiply(*layers_[layer].wo, x);
}

std::vector<double> PlainForward::OutputNorms(const Activations& activations, int layer) {
  const int n = activations.tokens, hidden = config().hidden_size;
  std::vector<double> norms(static_cast<size_t>(activations.heads) * n);
  for (int head = 0; head < activations.heads; ++head) {
    const std::vector<float> rows = Multiply(*layers_[layer].wo_of_head[head],
                                             {activations.Values(layer, head / activations.Group()),
                                              static_cast<size_t>(n) * activations.head_dim});
    for (int j = 0; j < n; ++j) {
      for (int i = 0; i < hidden; ++i)
        norms[static_cast<size_t>(head) * n + j] +=
            std::abs(rows[static_cast<size_t>(j) * hidden + i]);
    }
  }
  return norms;
}

}  // namespace hydrant::eval
