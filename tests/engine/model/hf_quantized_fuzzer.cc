// Parses arbitrary bytes as a safetensors file of quantised matrices: the first five choose the
// method and its sizes. Makes every row.
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "engine/model/hf_quantized_tensors.h"

namespace {

void MakeRows(const hydrant::TensorView& view) {
  constexpr int64_t kMaxValues = 1 << 20;
  if (view.maker == nullptr || view.shape[0] * view.shape[1] > kMaxValues) return;
  std::vector<uint8_t> row(hydrant::BytesOf(view.dtype, view.shape[1]));
  for (int64_t i = 0; i < view.shape[0]; ++i) view.maker->Make(i, row.data());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 5) return 0;
  hydrant::HfQuantization quantization;
  quantization.method = static_cast<hydrant::HfQuantization::Method>(data[0] % 4);
  quantization.block_rows = data[1];
  quantization.block_cols = data[1] == 0 ? 0 : data[2] + 1;
  quantization.group_size = data[3];
  quantization.zero_offset = data[4] % 2;
  const auto file = hydrant::SafetensorsFile::Parse({data + 5, size - 5});
  if (!file.ok()) return 0;
  const std::vector<std::string> present = (*file)->Names();
  const hydrant::RawTensors tensors = {
      .has = [&](const std::string& name) { return (*file)->FindRaw(name).ok(); },
      .find = [&](const std::string& name) { return (*file)->FindRaw(name); }};
  const auto names = hydrant::FamilyNames(quantization, tensors, present);
  if (!names.ok()) return 0;
  for (const std::string& name : *names) {
    const auto view = hydrant::FindTensorOf(quantization, tensors, name);
    if (view.ok()) MakeRows(*view);
  }
  return 0;
}
