#include "engine/text/tokenizer/tokenizer_json_writer.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <tuple>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "kernels/status_macros.h"

namespace hydrant {
namespace {

using Json = nlohmann::json;

// Bounds the work: all ways to cut a piece in two are tried.
constexpr size_t kLongestPiece = 1024;

Json ListOrOne(const char* type, const char* list, std::vector<Json> parts) {
  if (parts.empty()) return nullptr;
  if (parts.size() == 1) return parts.front();
  return {{"type", type}, {list, std::move(parts)}};
}

Json NormalizerJson(const TokenizerSpec& spec) {
  using Kind = NormalizerSpec::Kind;
  std::vector<Json> parts;
  for (const NormalizerSpec& step : spec.normalizers) {
    switch (step.kind) {
      case Kind::kNfc:
        parts.push_back({{"type", "NFC"}});
        break;
      case Kind::kNfd:
        parts.push_back({{"type", "NFD"}});
        break;
      case Kind::kNfkc:
        parts.push_back({{"type", "NFKC"}});
        break;
      case Kind::kNfkd:
        parts.push_back({{"type", "NFKD"}});
        break;
      case Kind::kPrepend:
        parts.push_back({{"type", "Prepend"}, {"prepend", step.content}});
        break;
      case Kind::kReplace:
      case Kind::kReplaceRegex: {
        const char* kind = step.kind == Kind::kReplace ? "String" : "Regex";
        parts.push_back(
            {{"type", "Replace"}, {"pattern", {{kind, step.pattern}}}, {"content", step.content}});
        break;
      }
    }
  }
  return ListOrOne("Sequence", "normalizers", std::move(parts));
}

const char* NameOf(SplitBehavior behavior) {
  switch (behavior) {
    case SplitBehavior::kRemoved:
      return "Removed";
    case SplitBehavior::kIsolated:
      return "Isolated";
    case SplitBehavior::kMergedWithPrevious:
      return "MergedWithPrevious";
    case SplitBehavior::kMergedWithNext:
      return "MergedWithNext";
    case SplitBehavior::kContiguous:
      return "Contiguous";
  }
  return "";
}

const char* NameOf(PrependScheme scheme) {
  switch (scheme) {
    case PrependScheme::kAlways:
      return "always";
    case PrependScheme::kFirst:
      return "first";
    case PrependScheme::kNever:
      return "never";
  }
  return "";
}

Json ByteLevel(bool prefix_space) {
  return {{"type", "ByteLevel"},
          {"add_prefix_space", prefix_space},
          {"trim_offsets", true},
          {"use_regex", false}};
}

Json PreTokenizerJson(const TokenizerSpec& spec) {
  using Kind = PreTokenizerSpec::Kind;
  std::vector<Json> parts;
  bool prefix_space = false;
  for (const PreTokenizerSpec& step : spec.pre_tokenizers) {
    if (step.kind == Kind::kSplit) {
      parts.push_back({{"type", "Split"},
                       {"pattern", {{"Regex", step.regex}}},
                       {"behavior", NameOf(step.behavior)},
                       {"invert", step.invert}});
    } else if (step.kind == Kind::kEscapeSpaces) {
      parts.push_back({{"type", "Metaspace"},
                       {"replacement", step.replacement},
                       {"prepend_scheme", NameOf(step.prepend)},
                       {"split", false}});
    } else {
      prefix_space = true;
    }
  }
  if (spec.byte_level) parts.push_back(ByteLevel(prefix_space));
  return ListOrOne("Sequence", "pretokenizers", std::move(parts));
}

Json PostProcessor(const TokenizerSpec& spec) {
  if (spec.prefix.empty() && spec.suffix.empty()) return nullptr;
  Json single = Json::array(), pair = Json::array(), tokens = Json::object();
  const auto add = [&](const std::vector<TokenId>& ids, Json* to) {
    for (const TokenId id : ids) {
      const std::string& text = spec.vocab[id].text;
      to->push_back({{"SpecialToken", {{"id", text}, {"type_id", 0}}}});
      tokens[text] = {{"id", text}, {"ids", {id}}, {"tokens", {text}}};
    }
  };
  const auto sequence = [](const char* name) -> Json {
    return {{"Sequence", {{"id", name}, {"type_id", 0}}}};
  };
  for (Json* to : {&single, &pair}) {
    add(spec.prefix, to);
    to->push_back(sequence("A"));
    if (to == &pair) to->push_back(sequence("B"));
    add(spec.suffix, to);
  }
  return {{"type", "TemplateProcessing"},
          {"single", single},
          {"pair", pair},
          {"special_tokens", tokens}};
}

Json Decoder(const DecoderSpec& spec) {
  if (spec.byte_alphabet) return ByteLevel(true);
  std::vector<Json> parts;
  for (const auto& [from, to] : spec.replacements)
    parts.push_back({{"type", "Replace"}, {"pattern", {{"String", from}}}, {"content", to}});
  if (spec.byte_fallback) parts.push_back({{"type", "ByteFallback"}});
  parts.push_back({{"type", "Fuse"}});
  if (spec.strip_first_space)
    parts.push_back({{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}});
  return {{"type", "Sequence"}, {"decoders", std::move(parts)}};
}

// The pairs that concatenate to a token, highest score first. The order among pairs of one token
// has no effect; it follows Hugging Face's converters.
Json MergesByScore(const TokenizerSpec& spec) {
  absl::flat_hash_map<std::string_view, size_t> ids;
  for (size_t id = 0; id < spec.vocab.size(); ++id) {
    if (spec.vocab[id].kind != TokenKind::kAbsent) ids.emplace(spec.vocab[id].text, id);
  }
  struct Merge {
    float score;
    std::string_view left, right;
  };
  std::vector<Merge> merges;
  for (const VocabEntry& entry : spec.vocab) {
    if (entry.kind != TokenKind::kNormal && entry.kind != TokenKind::kUnused) continue;
    const std::string_view text = entry.text;
    for (size_t cut = 1; cut < text.size(); ++cut) {
      if ((static_cast<uint8_t>(text[cut]) & 0xC0) == 0x80) continue;  // inside a character
      if (ids.contains(text.substr(0, cut)) && ids.contains(text.substr(cut)))
        merges.push_back({entry.score, text.substr(0, cut), text.substr(cut)});
    }
  }
  std::ranges::stable_sort(merges, [](const Merge& a, const Merge& b) {
    return std::tuple(a.score, a.left.size(), a.right.size()) >
           std::tuple(b.score, b.left.size(), b.right.size());
  });
  Json list = Json::array();
  for (const Merge& merge : merges) list.push_back({merge.left, merge.right});
  return list;
}

Json MergesByRank(const TokenizerSpec& spec) {
  Json list = Json::array();
  for (const auto& [left, right] : spec.merges) list.push_back({left, right});
  return list;
}

absl::Status CheckWritable(const TokenizerSpec& spec) {
  if (spec.algorithm == TokenizerSpec::Algorithm::kSentencePiece)
    return absl::UnimplementedError("a SentencePiece model is a file of its own");
  if (!spec.decoder.drop_in_first.empty())
    return absl::UnimplementedError("a Metaspace decoder is not written");
  if (spec.algorithm == TokenizerSpec::Algorithm::kMergeScores) {
    for (const VocabEntry& entry : spec.vocab) {
      if (entry.text.size() > kLongestPiece)
        return absl::UnimplementedError(absl::StrCat("a token has ", entry.text.size(),
                                                     " bytes; the limit is ", kLongestPiece));
    }
  }
  for (const AddedToken& token : spec.added) {
    if (token.escaped)
      return absl::UnimplementedError("added tokens that hold spaces are not written");
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::string> WriteTokenizerJson(const TokenizerSpec& spec) {
  HYDRANT_RETURN_IF_ERROR(CheckWritable(spec));
  Json added = Json::array();
  for (const AddedToken& token : spec.added) {
    added.push_back({{"id", token.id},
                     {"content", token.content},
                     {"single_word", token.single_word},
                     {"lstrip", token.lstrip},
                     {"rstrip", token.rstrip},
                     {"normalized", token.normalized},
                     {"special", token.special}});
  }
  Json vocab = Json::object();
  for (size_t id = 0; id < spec.vocab.size(); ++id) {
    if (spec.vocab[id].kind != TokenKind::kAbsent) vocab[spec.vocab[id].text] = id;
  }
  const bool by_score = spec.algorithm == TokenizerSpec::Algorithm::kMergeScores;
  Json unknown = nullptr;
  if (spec.unknown_id >= 0) unknown = spec.vocab[static_cast<size_t>(spec.unknown_id)].text;
  Json model = {{"type", "BPE"},
                {"dropout", nullptr},
                {"unk_token", std::move(unknown)},
                {"continuing_subword_prefix", nullptr},
                {"end_of_word_suffix", nullptr},
                {"fuse_unk", spec.fuse_unknown},
                {"byte_fallback", spec.byte_fallback},
                {"ignore_merges", spec.ignore_merges},
                {"vocab", std::move(vocab)},
                {"merges", by_score ? MergesByScore(spec) : MergesByRank(spec)}};
  const Json root = {{"version", "1.0"},
                     {"truncation", nullptr},
                     {"padding", nullptr},
                     {"added_tokens", std::move(added)},
                     {"normalizer", NormalizerJson(spec)},
                     {"pre_tokenizer", PreTokenizerJson(spec)},
                     {"post_processor", PostProcessor(spec)},
                     {"decoder", Decoder(spec.decoder)},
                     {"model", std::move(model)}};
  return root.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace hydrant
