// Parses arbitrary bytes as a model in two GGUF files: the first two bytes are the length of the
// first. Joins them, and reads every byte of every view.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "engine/model/gguf.h"
#include "engine/model/gguf_model.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2) return 0;
  const std::span<const uint8_t> rest(data + 2, size - 2);
  const size_t cut = std::min<size_t>(data[0] | data[1] << 8, rest.size());
  std::vector<std::unique_ptr<hydrant::GgufFile>> files;
  for (const auto bytes : {rest.first(cut), rest.subspan(cut)}) {
    auto file = hydrant::GgufFile::Parse(bytes);
    if (!file.ok()) return 0;
    files.push_back(*std::move(file));
  }
  auto joined = hydrant::GgufFile::Join(std::move(files));
  if (!joined.ok()) return 0;
  volatile uint8_t sink = 0;
  for (const auto& [name, view] : (*joined)->tensors()) {
    for (const uint8_t byte : view.bytes) sink = sink ^ byte;
  }
  (void)hydrant::MakeGgufSource(*std::move(joined));
  return 0;
}
