// The functions of the shared object that wraps the SentencePiece library. Plain C, because each
// side has its own C++ runtime and heap (see sentencepiece_library.cc): memory is freed on the side
// that allocated it, and exceptions do not cross.
#ifndef HYDRANT_ENGINE_TEXT_TOKENIZER_SENTENCEPIECE_MODULE_H_
#define HYDRANT_ENGINE_TEXT_TOKENIZER_SENTENCEPIECE_MODULE_H_

#include <cstddef>
#include <cstdint>

extern "C" {

// A model from the bytes of its file, or null with a message in `error` (truncated to `capacity`,
// terminated by 0).
void* HydrantSentencePieceOpen(const char* bytes, size_t size, char* error, size_t capacity);

// Calls take(context, ids, count) once with the ids of `text`; returns false, without the call, if
// the library refuses. Thread safe.
bool HydrantSentencePieceEncode(const void* model, const char* text, size_t size,
                                void (*take)(void* context, const int* ids, size_t count),
                                void* context);

void HydrantSentencePieceClose(void* model);

}  // extern "C"

#endif  // HYDRANT_ENGINE_TEXT_TOKENIZER_SENTENCEPIECE_MODULE_H_
