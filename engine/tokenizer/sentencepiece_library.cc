#include "engine/tokenizer/sentencepiece_library.h"

#include <sentencepiece_processor.h>

namespace hydrant {

struct SentencePieceLibrary::Impl {
  sentencepiece::SentencePieceProcessor processor;
};

SentencePieceLibrary::SentencePieceLibrary(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
SentencePieceLibrary::~SentencePieceLibrary() = default;

std::unique_ptr<SentencePieceLibrary> SentencePieceLibrary::Load(std::string_view model,
                                                                 std::string* error) {
  auto impl = std::make_unique<Impl>();
  const auto status = impl->processor.LoadFromSerializedProto(model);
  if (!status.ok()) {
    *error = status.ToString();
    return nullptr;
  }
  return std::unique_ptr<SentencePieceLibrary>(new SentencePieceLibrary(std::move(impl)));
}

bool SentencePieceLibrary::Encode(std::string_view text, std::vector<int>* ids,
                                  std::string* error) const {
  const auto status = impl_->processor.Encode(text, ids);
  if (!status.ok()) *error = status.ToString();
  return status.ok();
}

std::vector<SentencePieceLibrary::Piece> SentencePieceLibrary::Pieces() const {
  std::vector<Piece> pieces;
  for (int id = 0; id < impl_->processor.GetPieceSize(); ++id) {
    pieces.push_back({impl_->processor.IdToPiece(id), impl_->processor.IsControl(id),
                      impl_->processor.IsUnknown(id), impl_->processor.IsByte(id)});
  }
  return pieces;
}

int SentencePieceLibrary::bos_id() const { return impl_->processor.bos_id(); }
int SentencePieceLibrary::eos_id() const { return impl_->processor.eos_id(); }

}  // namespace hydrant
