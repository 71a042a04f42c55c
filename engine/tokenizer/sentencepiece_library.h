// The part of the SentencePiece library that is used, behind a header without its types: its own
// headers define an absl::string_view that clashes with Abseil's. Immutable after Load, thread
// safe.
#ifndef HYDRANT_ENGINE_TOKENIZER_SENTENCEPIECE_LIBRARY_H_
#define HYDRANT_ENGINE_TOKENIZER_SENTENCEPIECE_LIBRARY_H_

#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace hydrant {

class SentencePieceLibrary {
 public:
  struct Piece {
    std::string text;
    bool control, unknown, byte;
  };

  // nullptr, and `*error` says why, where `model` is not a SentencePiece model.
  static std::unique_ptr<SentencePieceLibrary> Load(std::string_view model, std::string* error);
  ~SentencePieceLibrary();

  // False, with `*error`, where the library refuses.
  bool Encode(std::string_view text, std::vector<int>* ids, std::string* error) const;
  std::vector<Piece> Pieces() const;
  int bos_id() const;  // -1: none
  int eos_id() const;

 private:
  struct Impl;
  explicit SentencePieceLibrary(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_TOKENIZER_SENTENCEPIECE_LIBRARY_H_
