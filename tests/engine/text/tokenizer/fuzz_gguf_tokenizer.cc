// Parses arbitrary bytes as a GGUF file: an error or a working tokenizer, never a crash.
#include <cstdlib>
#include <vector>

#include "engine/model/gguf.h"
#include "engine/text/tokenizer/detokenizer.h"
#include "engine/text/tokenizer/tokenizer.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::vector<uint8_t> bytes(data, data + size);
  auto file = hydrant::GgufFile::Parse(bytes);
  if (!file.ok()) return 0;
  (void)hydrant::TokenizerJsonFromGguf(**file);
  auto tokenizer = hydrant::TokenizerFromGguf(**file);
  if (!tokenizer.ok()) return 0;
  auto ids = (*tokenizer)->Encode("The <s>  é 世界👍 123\n\tdon't<|im_end|>", {});
  if (!ids.ok()) return 0;
  for (const auto id : *ids) {
    if (id >= (*tokenizer)->VocabSize()) std::abort();
  }
  hydrant::Decode(**tokenizer, *ids, true);
  return 0;
}
