// Small llama models with random weights and a byte-level tokenizer, written as GGUF files. For
// tests only.
#ifndef HYDRANT_TESTS_ENGINE_MODEL_TINY_MODEL_H_
#define HYDRANT_TESTS_ENGINE_MODEL_TINY_MODEL_H_

#include <cstdint>
#include <string>
#include <vector>

#include "engine/model/model_config.h"
#include "kernels/dtype.h"

namespace hydrant {

// 2 layers, hidden 64, 4 query and 2 KV heads of 16, feed-forward 128, vocabulary 320, context 512.
ModelConfig TinyLlamaConfig();

// Ids of the tokenizer below. Id b < 256 is the byte b.
inline constexpr int kTinyEndOfText = 256;  // <|endoftext|>
inline constexpr int kTinyImStart = 257;    // <|im_start|>, also bos (not added)
inline constexpr int kTinyImEnd = 258;      // <|im_end|>, also eos
inline constexpr int kTinyMinVocab = 259;

// The file's bytes. Weights are random with a standard deviation of 1/sqrt(inputs) (embedding: 1),
// norms are about 1. Tensors with rows that are not whole blocks of `dtype` are stored as f32. The
// config's rope_linear_factor and rope_freq_factors are written; rope_pairing is always read back
// as interleaved. The metadata holds a tokenizer of the model "gpt2", pre "gpt-2": 256 byte tokens,
// the three specials, a few merges if the vocabulary has room (280 or more), then padding; and a
// ChatML template. REQUIRES: config.vocab_size >= kTinyMinVocab.
std::vector<uint8_t> BuildTinyLlamaGguf(const ModelConfig& config, DType dtype, uint64_t seed);

// Writes it and returns `path`; aborts the program if the file cannot be written.
std::string WriteTinyLlamaGguf(const std::string& path, const ModelConfig& config, DType dtype,
                               uint64_t seed);

}  // namespace hydrant

#endif  // HYDRANT_TESTS_ENGINE_MODEL_TINY_MODEL_H_
