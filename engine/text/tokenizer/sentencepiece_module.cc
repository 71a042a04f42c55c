#include "engine/text/tokenizer/sentencepiece_module.h"

#include <sentencepiece_processor.h>

#include <cstdio>
#include <exception>
#include <memory>
#include <vector>

using sentencepiece::SentencePieceProcessor;

void* HydrantSentencePieceOpen(const char* bytes, size_t size, char* error, size_t capacity) {
  try {
    auto model = std::make_unique<SentencePieceProcessor>();
    const auto status = model->LoadFromSerializedProto({bytes, size});
    if (status.ok()) return model.release();
    std::snprintf(error, capacity, "%s", status.message());
  } catch (const std::exception& e) {
    std::snprintf(error, capacity, "%s", e.what());
  }
  return nullptr;
}

bool HydrantSentencePieceEncode(const void* model, const char* text, size_t size,
                                void (*take)(void* context, const int* ids, size_t count),
                                void* context) {
  try {
    std::vector<int> ids;
    if (!static_cast<const SentencePieceProcessor*>(model)->Encode({text, size}, &ids).ok())
      return false;
    take(context, ids.data(), ids.size());
    return true;
  } catch (const std::exception&) {
    return false;
  }
}

void HydrantSentencePieceClose(void* model) { delete static_cast<SentencePieceProcessor*>(model); }
