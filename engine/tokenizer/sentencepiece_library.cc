#include "engine/tokenizer/sentencepiece_library.h"

#include <dlfcn.h>

#include <array>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/tokenizer/sentencepiece_module.h"

namespace hydrant {
namespace {

constexpr const char* kModule = "libhydrant_sentencepiece.so";

// Debian's libsentencepiece exports the protobuf it was built with, gRPC brings another of another
// version, and in one namespace of symbols the first one loaded serves both, which ends in a crash.
// So the library is loaded into a namespace of its own, where it also gets its own C++ runtime; the
// module in front of it speaks C.
class SentencePieceLibraryModel final : public SubwordModel {
 public:
  ~SentencePieceLibraryModel() override {
    if (model_ != nullptr) close_(model_);
    if (module_ != nullptr) dlclose(module_);
  }

  absl::Status Load(std::string_view bytes) {
    module_ = dlmopen(LM_ID_NEWLM, kModule, RTLD_NOW | RTLD_LOCAL);
    if (module_ == nullptr || !Find("HydrantSentencePieceOpen", &open_) ||
        !Find("HydrantSentencePieceEncode", &encode_) ||
        !Find("HydrantSentencePieceClose", &close_)) {
      return absl::FailedPreconditionError(absl::StrCat(
          "tokenizer.model: a model of this kind needs the SentencePiece library; build with "
          "libsentencepiece-dev installed, or convert it to tokenizer.json (",
          dlerror(), ")"));
    }
    std::array<char, 512> error = {};
    model_ = open_(bytes.data(), bytes.size(), error.data(), error.size());
    if (model_ == nullptr) {
      return absl::InvalidArgumentError(
          absl::StrCat("tokenizer.model: SentencePiece refuses it: ", error.data()));
    }
    return absl::OkStatus();
  }

  void Encode(std::string_view text, std::vector<TokenId>* ids) const override {
    const auto take = [](void* context, const int* taken, size_t count) {
      auto* out = static_cast<std::vector<TokenId>*>(context);
      out->insert(out->end(), taken, taken + count);
    };
    encode_(model_, text.data(), text.size(), take, ids);
  }

 private:
  template <typename Function>
  bool Find(const char* name, Function** function) {
    *function = reinterpret_cast<Function*>(dlsym(module_, name));
    return *function != nullptr;
  }

  void* module_ = nullptr;
  void* model_ = nullptr;
  decltype(HydrantSentencePieceOpen)* open_ = nullptr;
  decltype(HydrantSentencePieceEncode)* encode_ = nullptr;
  decltype(HydrantSentencePieceClose)* close_ = nullptr;
};

}  // namespace

absl::StatusOr<std::unique_ptr<SubwordModel>> MakeSentencePieceLibraryModel(
    std::string_view bytes) {
  auto model = std::make_unique<SentencePieceLibraryModel>();
  if (absl::Status status = model->Load(bytes); !status.ok()) return status;
  return model;
}

}  // namespace hydrant
