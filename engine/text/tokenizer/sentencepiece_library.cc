#include "engine/text/tokenizer/sentencepiece_library.h"

#include <dlfcn.h>

#include <array>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/text/tokenizer/sentencepiece_module.h"

namespace hydrant {
namespace {

constexpr const char* kModule = "libhydrant_sentencepiece.so";

// Debian's libsentencepiece exports the protobuf that it was built with, and gRPC brings another
// version; in one linker namespace the first one loaded serves both, which crashes. So the library
// is loaded into its own namespace, with its own C++ runtime; the wrapping module has a C
// interface.
struct Module {
  decltype(HydrantSentencePieceOpen)* open = nullptr;
  decltype(HydrantSentencePieceEncode)* encode = nullptr;
  decltype(HydrantSentencePieceClose)* close = nullptr;
  std::string error;  // reason of a failed load
};

template <typename Function>
bool Find(void* library, const char* name, Function** function) {
  *function = reinterpret_cast<Function*>(dlsym(library, name));
  return *function != nullptr;
}

Module LoadModule() {
  Module module;
  void* library = dlmopen(LM_ID_NEWLM, kModule, RTLD_NOW | RTLD_LOCAL);
  const bool found = library != nullptr &&
                     Find(library, "HydrantSentencePieceOpen", &module.open) &&
                     Find(library, "HydrantSentencePieceEncode", &module.encode) &&
                     Find(library, "HydrantSentencePieceClose", &module.close);
  if (!found) module.error = dlerror();
  return module;
}

// Loaded once and never closed: libc does not reclaim the thread-local storage of a closed
// namespace and has room for nine.
const Module& LoadedModule() {
  static const Module module = LoadModule();
  return module;
}

class SentencePieceLibraryModel final : public SubwordModel {
 public:
  SentencePieceLibraryModel(const Module& module, void* model) : module_(module), model_(model) {}
  ~SentencePieceLibraryModel() override { module_.close(model_); }

  void Encode(std::string_view text, std::vector<TokenId>* ids) const override {
    const auto take = [](void* context, const int* taken, size_t count) {
      auto* out = static_cast<std::vector<TokenId>*>(context);
      out->insert(out->end(), taken, taken + count);
    };
    module_.encode(model_, text.data(), text.size(), take, ids);
  }

 private:
  const Module& module_;
  void* const model_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<SubwordModel>> MakeSentencePieceLibraryModel(
    std::string_view bytes) {
  const Module& module = LoadedModule();
  if (!module.error.empty()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "tokenizer.model: a model of this kind needs the SentencePiece library: build with "
        "libsentencepiece-dev installed, or convert it to tokenizer.json (",
        module.error, ")"));
  }
  std::array<char, 512> error = {};
  void* model = module.open(bytes.data(), bytes.size(), error.data(), error.size());
  if (model == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("tokenizer.model: SentencePiece refuses it: ", error.data()));
  }
  return std::make_unique<SentencePieceLibraryModel>(module, model);
}

}  // namespace hydrant
