#include "engine/run/forward/pooler.h"

#include <algorithm>

#include "kernels/status_macros.h"

namespace hydrant {

namespace {

constexpr int kRowsAtOnce = 256;  // hidden states normalised per pass

}  // namespace

absl::Status Pooler::Allocate(Backend* backend, const Transformer* model, int max_prompts) {
  backend_ = backend;
  model_ = model;
  const size_t width = model->config().hidden_size;
  HYDRANT_RETURN_IF_ERROR(normed_.Allocate(*backend, kRowsAtOnce * width));
  return embeddings_.Allocate(*backend, max_prompts * width);
}

const float* Pooler::embedding(int index) const {
  return embeddings_.data() + static_cast<size_t>(index) * model_->config().hidden_size;
}

void Pooler::Pool(EmbeddingPooling pooling, const float* hidden, int n, int index) {
  const int width = model_->config().hidden_size;
  float* out = embeddings_.data() + static_cast<size_t>(index) * width;
  backend_->Zero(out, width * sizeof(float));
  const int begin = pooling == EmbeddingPooling::kLast ? n - 1 : 0;
  const double divisor = (n - begin) * model_->LastNormScale();
  for (int row = begin; row < n; row += kRowsAtOnce) {
    const int rows = std::min(kRowsAtOnce, n - row);
    model_->FinalNorm(hidden + static_cast<size_t>(row) * width, rows, normed_.data());
    backend_->SumRows({.x = normed_.data(),
                       .m = rows,
                       .n = width,
                       .scale = static_cast<float>(1.0 / divisor),
                       .out = out});
  }
}

}  // namespace hydrant
