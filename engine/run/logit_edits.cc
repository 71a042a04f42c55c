#include "engine/run/logit_edits.h"

#include <algorithm>

#include "kernels/check.h"

namespace hydrant {
namespace {

// The range of the ascending `rows` that lies in [begin, end).
struct Part {
  Part(const std::vector<int32_t>& rows, int begin, int end)
      : first(std::ranges::lower_bound(rows, begin) - rows.begin()),
        count(static_cast<int>(std::ranges::lower_bound(rows, end) - rows.begin()) -
              static_cast<int>(first)) {}

  size_t first;
  int count;
};

}  // namespace

absl::Status LogitEdits::Allocate(Backend* backend, int max_rows, int vocab) {
  backend_ = backend;
  vocab_ = vocab;
  const size_t rows = max_rows;
  absl::Status status;
  const auto allocate = [&](auto& array, size_t count) {
    if (status.ok()) status = array.Allocate(*backend, count);
  };
  allocate(device_bias_rows_, rows * kMaxBiases);
  allocate(device_biases_, rows * kMaxBiases);
  allocate(device_mask_rows_, rows);
  allocate(device_masks_, rows * MaskWords(vocab));
  return status;
}

void LogitEdits::Write(const Batch& batch) {
  bias_rows_.clear();
  biases_.clear();
  mask_rows_.clear();
  masks_.clear();
  for (size_t i = 0; i < batch.sampled.size(); ++i) {
    const SampledRow& row = batch.sampled[i];
    const auto index = static_cast<int32_t>(i);
    HYDRANT_CHECK(row.biases.size() <= kMaxBiases);
    bias_rows_.insert(bias_rows_.end(), row.biases.size(), index);
    biases_.insert(biases_.end(), row.biases.begin(), row.biases.end());
    if (!row.mask.empty()) {
      mask_rows_.push_back(index);
      masks_.insert(masks_.end(), row.mask.begin(), row.mask.end());
      masks_.resize(mask_rows_.size() * MaskWords(vocab_));
    }
  }
  device_bias_rows_.Write(*backend_, 0, bias_rows_);
  device_biases_.Write(*backend_, 0, biases_);
  device_mask_rows_.Write(*backend_, 0, mask_rows_);
  device_masks_.Write(*backend_, 0, masks_);
}

void LogitEdits::Apply(int begin, int end, float* logits) const {
  const Part biases(bias_rows_, begin, end), masks(mask_rows_, begin, end);
  if (biases.count > 0) {
    backend_->BiasLogits({.logits = logits,
                          .vocab = vocab_,
                          .num_biases = biases.count,
                          .rows = device_bias_rows_.data() + biases.first,
                          .biases = device_biases_.data() + biases.first});
  }
  if (masks.count > 0) {
    backend_->MaskLogits({.logits = logits,
                          .vocab = vocab_,
                          .num_masks = masks.count,
                          .rows = device_mask_rows_.data() + masks.first,
                          .masks = device_masks_.data() + masks.first * MaskWords(vocab_)});
  }
}

}  // namespace hydrant
