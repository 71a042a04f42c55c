// Any bytes as tokenizer.json: an error or a tokenizer that works, never a crash.
#include <cstdlib>

#include "engine/text/tokenizer/pipeline_tokenizer.h"
#include "engine/text/tokenizer/tokenizer_json.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view json(reinterpret_cast<const char*>(data), size);
  auto spec = hydrant::ParseTokenizerJson(json);
  if (!spec.ok()) return 0;
  auto tokenizer = hydrant::MakePipelineTokenizer(*spec);
  if (!tokenizer.ok()) return 0;
  auto ids = (*tokenizer)->Encode("The <s>  é 世界👍 123\n\tdon't<|im_end|>", {});
  if (!ids.ok()) return 0;
  for (const auto id : *ids) {
    if (id >= (*tokenizer)->VocabSize()) std::abort();
  }
  hydrant::Decode(**tokenizer, *ids, true);
  return 0;
}
