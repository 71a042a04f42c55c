#include "client/explain_page.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string_view>

#include "absl/strings/escaping.h"
#include "client/explain_page_html.h"
#include "fmt/format.h"

namespace hydrant {
namespace {

// The policy and its results, as a sentence.
std::string RequestText(const v1::GenerateRequest& request, const v1::Usage& usage) {
  const v1::Cache& cache = request.cache();
  std::string text = cache.has_cache_policy() ? "Policy " + cache.cache_policy()
                                              : std::string("The server's default policy");
  if (cache.has_cache_ratio()) text += fmt::format(", cache_ratio {:g}", cache.cache_ratio());
  if (cache.has_max_cache_tokens())
    text += fmt::format(", max_cache_tokens {}", cache.max_cache_tokens());
  for (const auto& [name, value] : cache.params()) text += fmt::format(", {} {}", name, value);
  if (usage.recalled_tokens() > 0)
    text += fmt::format("; {} tokens of the context were read again", usage.recalled_tokens());
  if (usage.has_auto_choice())
    text += fmt::format("; {} chosen: {}", usage.auto_choice().policy(), usage.auto_choice().why());
  if (usage.has_compressed_by())
    text += fmt::format("; compressed by {} for want of room", usage.compressed_by());
  if (usage.has_retained_mass()) {
    text += fmt::format("; {:.1f} % of the last tokens' attention falls on kept entries",
                        100 * usage.retained_mass().mean());
  }
  return text + ".";
}

}  // namespace

void ExplainPage::Add(const v1::GenerateResponse& response) {
  if (response.has_kept_entries()) {
    const v1::KeptEntries& more = response.kept_entries();
    // A stream that was lost before begins again.
    if (more.token_texts_size() > 0 && more.first_token() == 0) entries_.Clear();
    entries_.MergeFrom(more);
  }
  if (response.has_usage()) usage_ = response.usage();
}

std::string ExplainPage::Html(const v1::GenerateRequest& request) const {
  std::string texts;
  nlohmann::json lengths = nlohmann::json::array(), kept = nlohmann::json::array();
  for (const std::string& text : entries_.token_texts()) {
    texts += text;
    lengths.push_back(text.size());
  }
  uint32_t layers = 0, heads = 0;
  for (const v1::KeptByHead& head : entries_.heads()) {
    layers = std::max(layers, head.layer() + 1);
    heads = std::max(heads, head.head() + 1);
    kept.push_back(absl::Base64Escape(head.tokens()));
  }
  const nlohmann::json data = {{"request", RequestText(request, usage_)},
                               {"texts", absl::Base64Escape(texts)},
                               {"lengths", std::move(lengths)},
                               {"layers", layers},
                               {"heads", heads},
                               {"kept", std::move(kept)}};
  std::string json = data.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  // Prevents a parameter's text from ending the script element.
  for (size_t at = 0; (at = json.find("</", at)) != std::string::npos;) json.replace(at, 2, "<\\/");
  std::string page = kExplainPage;
  constexpr std::string_view kPlace = "/*DATA*/null";
  return page.replace(page.find(kPlace), kPlace.size(), json);
}

}  // namespace hydrant
