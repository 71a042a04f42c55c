#include "tools/eval/tasks/composer.h"

#include <algorithm>
#include <utility>

namespace hydrant::eval {
namespace {

// Enough characters for one token in most texts.
constexpr size_t kMaxCharactersAToken = 8;

void Append(const Ids& more, Ids* to) { to->insert(to->end(), more.begin(), more.end()); }

}  // namespace

Composer::Composer(const TaskOptions* options, const std::vector<std::string>* texts,
                   const PromptForm* form, const Tokenizer* tokenizer)
    : options_(options), texts_(texts), form_(form), tokenizer_(tokenizer) {}

Ids Composer::Encode(std::string_view text) const {
  auto ids = tokenizer_->Encode(text, {.add_special_tokens = false, .parse_special_tokens = false});
  return ids.ok() ? *std::move(ids) : Ids();
}

// A text of the prompt form.
Ids Composer::OfForm(std::string_view text) const {
  auto ids = tokenizer_->Encode(
      text, {.add_special_tokens = false, .parse_special_tokens = form_->has_special_tokens});
  return ids.ok() ? *std::move(ids) : Ids();
}

Ids Composer::Piece(const std::string& text, int number, int tokens) const {
  const size_t near = text.size() * (2 * number + 1) / (2 * options_->cases);
  const size_t line = text.find('\n', near);
  if (line == std::string::npos) return {};
  for (size_t characters = kMaxCharactersAToken * tokens;; characters *= 2) {
    Ids ids = Encode(std::string_view(text).substr(line + 1, characters));
    const bool is_enough = static_cast<int>(ids.size()) >= tokens;
    if (!is_enough && line + 1 + characters < text.size()) continue;  // long tokens
    if (!is_enough) return {};
    ids.resize(tokens);
    return ids;
  }
}

Ids Composer::Hide(int number, int tokens, const std::vector<Hidden>& hidden) const {
  const Ids haystack = Piece(texts_->front(), number, tokens);
  return haystack.empty() ? Ids() : HideIn(haystack, hidden);
}

Ids Composer::HideIn(const Ids& haystack, const std::vector<Hidden>& hidden) const {
  std::vector<std::pair<double, Ids>> sentences;
  size_t needed = 0;
  for (const Hidden& one : hidden) {
    sentences.emplace_back(one.depth, Encode(one.sentence));
    needed += sentences.back().second.size();
  }
  std::stable_sort(sentences.begin(), sentences.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  const size_t room = haystack.size() - std::min(haystack.size(), needed);
  Ids ids;
  size_t used = 0;
  for (const auto& [depth, sentence] : sentences) {
    const auto until = static_cast<size_t>(depth * static_cast<double>(room));
    ids.insert(ids.end(), haystack.begin() + used, haystack.begin() + until);
    Append(sentence, &ids);
    used = until;
  }
  ids.insert(ids.end(), haystack.begin() + used, haystack.begin() + room);
  return ids;
}

Ids Composer::Repeat(std::string_view text, int tokens) const {
  const Ids once = Encode(text);
  Ids ids;
  while (static_cast<int>(ids.size()) < tokens && !once.empty()) Append(once, &ids);
  ids.resize(tokens);
  return ids;
}

Ids Composer::Bos() const {
  const auto ids =
      tokenizer_->Encode("", {.add_special_tokens = true, .parse_special_tokens = false});
  const bool has_bos = ids.ok() && !ids->empty() && int64_t{ids->front()} == tokenizer_->bos_id();
  return has_bos ? Ids{ids->front()} : Ids();
}

Ids Composer::Opening() const { return form_->has_special_tokens ? OfForm(form_->opening) : Bos(); }

int Composer::Room() const { return options_->length - static_cast<int>(Opening().size()); }

Case Composer::BeginPlain(int number, const Ids& text, bool question_later) const {
  return BeginWith(Bos(), number, text, question_later);
}

Case Composer::Begin(int number, const Ids& text, bool question_later) const {
  return BeginWith(Opening(), number, text, question_later);
}

Case Composer::BeginWith(Ids opening, int number, const Ids& text, bool question_later) {
  Case made;
  made.number = number;
  if (text.empty()) return made;
  made.trial.question_later = question_later;
  made.trial.context = std::move(opening);
  Append(text, &made.trial.context);
  return made;
}

Exchange Composer::Answering(Ids read, std::string_view cue, std::string_view expected,
                             int generate) const {
  const size_t asked = read.size();
  Append(OfForm(form_->before_answer), &read);
  const std::string space = form_->has_special_tokens ? "" : " ";
  if (!cue.empty()) Append(Encode(space + std::string(cue)), &read);
  constexpr int kMoreTokens = 4;
  const int closing = form_->has_special_tokens ? static_cast<int>(read.size() - asked) : 0;
  Exchange exchange = {.read = std::move(read), .closing = closing, .stop = form_->stop};
  exchange.expected = Encode((cue.empty() ? space : " ") + std::string(expected));
  exchange.generate =
      generate == 0 ? 0
                    : std::max(generate, static_cast<int>(exchange.expected.size()) + kMoreTokens);
  return exchange;
}

Exchange Composer::Ask(std::string_view question, std::string_view cue, std::string_view expected,
                       int generate) const {
  Ids read = OfForm(form_->before_question);
  Append(Encode(question), &read);
  return Answering(std::move(read), cue, expected, generate);
}

Exchange Composer::AskNext(const Ids& text, std::string_view question, std::string_view expected,
                           int generate) const {
  Ids read = OfForm(text.empty() ? form_->before_next_question : form_->before_next_text);
  const int opening = form_->has_special_tokens ? static_cast<int>(read.size()) : 0;
  if (!text.empty()) {
    Append(text, &read);
    Append(OfForm(form_->before_question), &read);
  }
  Append(Encode(question), &read);
  Exchange exchange = Answering(std::move(read), "", expected, generate);
  exchange.opening = opening;
  return exchange;
}

void Composer::Add(Exchange exchange, Question question, Case* to) const {
  Trial& trial = to->trial;
  if (!trial.question_later) {
    Append(exchange.read, &trial.context);
    exchange.read.clear();
    exchange.opening = exchange.closing = 0;
  }
  question.dialogue = static_cast<int>(trial.dialogues.size());
  trial.dialogues.push_back({std::move(exchange)});
  to->questions.push_back(std::move(question));
}

}  // namespace hydrant::eval
