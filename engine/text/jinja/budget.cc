#include "engine/text/jinja/budget.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "kernels/status_macros.h"

namespace hydrant::jinja {
namespace {

constexpr int64_t kItemBytes = sizeof(Value);

absl::Status OverLimit(std::string_view what, int64_t limit, std::string_view unit) {
  return absl::InvalidArgumentError(absl::StrCat("the template ", std::string(what), " more than ",
                                                 limit, " ", std::string(unit)));
}

}  // namespace

absl::Status Budget::Step(int64_t steps) {
  steps_ += steps;
  if (steps_ <= limits_.max_steps) return absl::OkStatus();
  return OverLimit("takes", limits_.max_steps, "steps");
}

absl::Status Budget::Allocate(int64_t bytes) {
  if (bytes > limits_.max_value_bytes)
    return OverLimit("makes a value of", limits_.max_value_bytes, "bytes");
  allocated_bytes_ += bytes;
  if (allocated_bytes_ <= limits_.max_allocated_bytes) return absl::OkStatus();
  return OverLimit("allocates", limits_.max_allocated_bytes, "bytes");
}

absl::Status Budget::AllocateItems(size_t items) {
  HYDRANT_RETURN_IF_ERROR(Step(static_cast<int64_t>(items)));
  return Allocate(static_cast<int64_t>(items) * kItemBytes);
}

absl::Status Budget::CheckItems(size_t items) const {
  if (static_cast<int64_t>(items) * kItemBytes <= limits_.max_value_bytes) return absl::OkStatus();
  return OverLimit("makes a value of", limits_.max_value_bytes, "bytes");
}

absl::StatusOr<Value> Budget::NewString(std::string text, bool markup) {
  HYDRANT_RETURN_IF_ERROR(Allocate(static_cast<int64_t>(text.size())));
  return Value::String(std::move(text), markup);
}

absl::StatusOr<Value> Budget::NewSequence(Sequence::Kind kind, std::vector<Value> items,
                                          std::string range_text) {
  HYDRANT_RETURN_IF_ERROR(AllocateItems(items.size()));
  auto sequence = std::make_shared<Sequence>(kind, std::move(items), std::move(range_text));
  HYDRANT_RETURN_IF_ERROR(CheckExtent(sequence->extent()));
  return Value(std::move(sequence));
}

absl::StatusOr<Value> Budget::NewDict(Dict dict) {
  HYDRANT_RETURN_IF_ERROR(AllocateItems(2 * dict.size()));
  HYDRANT_RETURN_IF_ERROR(CheckExtent(dict.extent()));
  return Value(std::make_shared<const Dict>(std::move(dict)));
}

absl::Status Budget::CheckExtent(const Extent& extent) const {
  if (extent.height > limits_.max_nesting)
    return OverLimit("nests values", limits_.max_nesting, "deep");
  if (extent.weight > limits_.max_value_weight)
    return OverLimit("makes a value of", limits_.max_value_weight, "parts");
  return absl::OkStatus();
}

void BoundedText::Append(std::string_view piece) { AppendTimes(piece, 1); }

void BoundedText::AppendTimes(std::string_view piece, int64_t times) {
  if (!status_.ok() || piece.empty() || times < 1) return;
  int64_t bytes = 0, size = 0;
  if (__builtin_mul_overflow(static_cast<int64_t>(piece.size()), times, &bytes)) bytes = INT64_MAX;
  if (__builtin_add_overflow(static_cast<int64_t>(text_.size()), bytes, &size)) size = INT64_MAX;
  const bool fits = size <= budget_->limits().max_value_bytes;
  status_ = budget_->Allocate(fits ? bytes : size);
  if (!status_.ok()) return;
  for (; times > 0; --times) text_ += piece;
}

absl::StatusOr<std::string> BoundedText::Text() && {
  HYDRANT_RETURN_IF_ERROR(status_);
  return std::move(text_);
}

absl::StatusOr<Value> BoundedText::String(bool markup) && {
  HYDRANT_RETURN_IF_ERROR(status_);
  return Value::String(std::move(text_), markup);
}

}  // namespace hydrant::jinja
