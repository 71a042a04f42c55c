#include <cstdio>

#include "absl/container/flat_hash_map.h"
#include "engine/text/tokenizer/subword_model.h"

namespace hydrant {

std::vector<int64_t> FindByteTokens(const TokenizerSpec& spec) {
  std::vector<int64_t> ids(256, -1);
  absl::flat_hash_map<std::string, int> names;
  for (int byte = 0; byte < 256; ++byte) {
    char name[8];
    std::snprintf(name, sizeof(name), "<0x%02X>", byte);
    names[name] = byte;
  }
  for (size_t id = 0; id < spec.vocab.size(); ++id) {
    const VocabEntry& entry = spec.vocab[id];
    if (entry.kind != TokenKind::kNormal && entry.kind != TokenKind::kByte) continue;
    if (const auto found = names.find(entry.text); found != names.end()) {
      ids[found->second] = static_cast<int64_t>(id);
    }
  }
  return ids;
}

}  // namespace hydrant
