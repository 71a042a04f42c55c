#include "engine/text/tokenizer/space_escaping.h"

#include <algorithm>
#include <string>

namespace hydrant {
namespace {

bool HasInstructionToken(const TokenizerSpec& spec) {
  return std::ranges::any_of(spec.added, [](const AddedToken& token) {
    return token.special && token.content == "[INST]";
  });
}

}  // namespace

void EscapeSpaces(bool prefix, bool first_only, TokenizerSpec* spec) {
  if (prefix && (first_only || HasInstructionToken(*spec))) {
    PreTokenizerSpec escape;
    escape.kind = PreTokenizerSpec::Kind::kEscapeSpaces;
    escape.replacement = std::string(kSpaceMark);
    escape.prepend = PrependScheme::kFirst;
    spec->pre_tokenizers.push_back(std::move(escape));
    return;
  }
  if (prefix)
    spec->normalizers.push_back({NormalizerSpec::Kind::kPrepend, "", std::string(kSpaceMark)});
  spec->normalizers.push_back({NormalizerSpec::Kind::kReplace, " ", std::string(kSpaceMark)});
}

}  // namespace hydrant
