// The functions of the shared object that wraps the SentencePiece library. Plain C, because the two
// sides have a C++ runtime and a heap each (see sentencepiece_library.cc): memory is freed on the
// side that allocated it, and nothing throws across.
#ifndef HYDRANT_ENGINE_TEXT_TOKENIZER_SENTENCEPIECE_MODULE_H_
#define HYDRANT_ENGINE_TEXT_TOKENIZER_SENTENCEPIECE_MODULE_H_

#include <cstddef>
#include <cstdint>

extern "C" {

// A model from the bytes of its file, or null with a message (cut to `capacity`, ends in 0) in
// `error`.
void* HydrantSentencePieceOpen(const char* bytes, size_t size, char* error, size_t capacity);

// Calls take(context, ids, count) once with the ids of `text`; returns false, without the call,
// where the library refuses. Any thread, also several at once.
bool HydrantSentencePieceEncode(const void* model, const char* text, size_t size,
                                void (*take)(void* context, const int* ids, size_t count),
                                void* context);

void HydrantSentencePieceClose(void* model);

}  // extern "C"

#endif  // HYDRANT_ENGINE_TEXT_TOKENIZER_SENTENCEPIECE_MODULE_H_
