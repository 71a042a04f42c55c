#include "tools/eval/kept_text.h"

#include <cmath>
#include <fstream>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

namespace hydrant::eval {
namespace {

using Json = nlohmann::json;

std::string SharesOf(const KeptEntries& kept) {
  const int heads = kept.num_layers() * kept.num_kv_heads();
  std::string shares;
  for (int token = 0; token < kept.num_tokens(); ++token) {
    int held = 0;
    for (int layer = 0; layer < kept.num_layers(); ++layer) {
      for (int head = 0; head < kept.num_kv_heads(); ++head)
        held += kept.OfHead(layer, head)[token / 8] >> token % 8 & 1;
    }
    shares += static_cast<char>(std::lround(255.0 * held / heads));
  }
  return shares;
}

}  // namespace

KeptText::KeptText(std::string path) : path_(std::move(path)) {
  std::ifstream file(path_, std::ios::binary);
  if (!file) return;
  json_ = Json::parse(file, nullptr, false);
  if (!json_.is_object() || !json_.contains("arms") || !json_["arms"].is_array()) json_ = Json();
}

void KeptText::Add(const std::string& arm, double budget, const KeptEntries& kept) {
  if (json_.is_null()) json_ = {{"arms", Json::array()}};
  Json shares = {{"arm", arm}, {"budget", budget}, {"shares", absl::Base64Escape(SharesOf(kept))}};
  for (Json& other : json_["arms"]) {
    if (other.value("arm", "") == arm && other.value("budget", 0.0) == budget) {
      other = std::move(shares);
      return;
    }
  }
  json_["arms"].push_back(std::move(shares));
}

absl::Status KeptText::Save(const std::vector<TokenId>& context, const Tokenizer& tokenizer) {
  std::string texts;
  Json lengths = Json::array();
  for (size_t i = 0; i < context.size(); ++i) {
    const std::string text = tokenizer.TokenBytes(context[i], /*skip_special=*/false, i == 0);
    texts += text;
    lengths.push_back(text.size());
  }
  if (json_.is_null()) json_ = {{"arms", Json::array()}};
  json_["texts"] = absl::Base64Escape(texts);
  json_["lengths"] = std::move(lengths);
  std::ofstream file(path_, std::ios::binary);
  file << json_.dump() << std::flush;
  return file ? absl::OkStatus() : absl::DataLossError(absl::StrCat("cannot write ", path_));
}

}  // namespace hydrant::eval
