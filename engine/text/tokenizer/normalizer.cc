#include "engine/text/tokenizer/normalizer.h"

#include "absl/strings/str_cat.h"
#include "engine/text/tokenizer/unicode.h"
#include "engine/text/unicode/utf8.h"
#include "kernels/status_macros.h"

namespace hydrant {
namespace {

std::string ReplaceAll(std::string_view text, std::string_view pattern, std::string_view content) {
  std::string out;
  out.reserve(text.size());
  for (;;) {
    const size_t at = text.find(pattern);
    out.append(text.substr(0, at));
    if (at == std::string_view::npos) return out;
    out.append(content);
    text.remove_prefix(at + pattern.size());
  }
}

absl::StatusOr<std::string> ReplaceMatches(const std::string& text, const Regex& regex,
                                           std::string_view content) {
  std::vector<Regex::Match> matches;
  HYDRANT_RETURN_IF_ERROR(regex.FindAll(text, &matches));
  std::string out;
  size_t done = 0;
  for (const auto& [begin, end] : matches) {
    out.append(text, done, begin - done).append(content);
    done = end;
  }
  return out.append(text, done);
}

}  // namespace

absl::StatusOr<Normalizer> Normalizer::Create(const std::vector<NormalizerSpec>& specs) {
  using Kind = NormalizerSpec::Kind;
  Normalizer normalizer;
  for (const NormalizerSpec& spec : specs) {
    Step step{spec, nullptr};
    if (spec.kind == Kind::kReplace && spec.pattern.empty()) {
      return absl::InvalidArgumentError("normalizer Replace has an empty pattern");
    }
    if (spec.kind == Kind::kReplaceRegex) {
      auto regex = Regex::Compile(spec.pattern);
      if (!regex.ok()) {
        return absl::Status(regex.status().code(),
                            absl::StrCat("normalizer Replace: ", regex.status().message()));
      }
      step.regex = *std::move(regex);
    }
    HYDRANT_RETURN_IF_ERROR(ValidateUtf8(spec.content));
    normalizer.steps_.push_back(std::move(step));
  }
  return normalizer;
}

absl::StatusOr<std::string> Normalizer::Apply(std::string text) const {
  using Kind = NormalizerSpec::Kind;
  for (const Step& step : steps_) {
    switch (step.spec.kind) {
      case Kind::kNfc:
        text = Normalize(NormalForm::kNfc, text);
        break;
      case Kind::kNfd:
        text = Normalize(NormalForm::kNfd, text);
        break;
      case Kind::kNfkc:
        text = Normalize(NormalForm::kNfkc, text);
        break;
      case Kind::kNfkd:
        text = Normalize(NormalForm::kNfkd, text);
        break;
      case Kind::kPrepend:
        if (!text.empty()) text.insert(0, step.spec.content);
        break;
      case Kind::kReplace:
        text = ReplaceAll(text, step.spec.pattern, step.spec.content);
        break;
      case Kind::kReplaceRegex: {
        HYDRANT_ASSIGN_OR_RETURN(text, ReplaceMatches(text, *step.regex, step.spec.content));
        break;
      }
    }
  }
  return text;
}

}  // namespace hydrant
