// Parses arbitrary bytes as a GGUF file, builds a model, and reads every byte of every view.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "engine/model/gguf.h"
#include "engine/model/gguf_model.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  auto file = hydrant::GgufFile::Parse({data, size});
  if (!file.ok()) return 0;
  volatile uint8_t sink = 0;
  for (const auto& [name, view] : (*file)->tensors()) {
    for (const uint8_t byte : view.bytes) sink = sink ^ byte;
  }
  (void)hydrant::MakeGgufSource(*std::move(file));
  return 0;
}
