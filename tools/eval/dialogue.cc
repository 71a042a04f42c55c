#include "tools/eval/dialogue.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <utility>

#include "engine/text/passages/passages.h"

namespace hydrant::eval {
namespace {

// ln(sum(exp(logits)))
double LogSum(std::span<const float> logits) {
  const float top = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float logit : logits) sum += std::exp(logit - top);
  return std::log(sum) + top;
}

size_t Best(std::span<const float> logits) {
  return std::max_element(logits.begin(), logits.end()) - logits.begin();
}

double Divergence(std::span<const float> full, std::span<const float> other) {
  const double log_full = LogSum(full), log_other = LogSum(other);
  double sum = 0;
  for (size_t i = 0; i < full.size(); ++i) {
    const double log_p = full[i] - log_full;
    sum += std::exp(log_p) * (log_p - (other[i] - log_other));
  }
  return std::max(0.0, sum);
}

void Append(std::span<const TokenId> tokens, std::vector<TokenId>* to) {
  to->insert(to->end(), tokens.begin(), tokens.end());
}

// `tokens`, behind those that have not been read. The speaker has then seen them.
std::vector<TokenId> WithUnread(const std::vector<TokenId>& tokens, Speaker* speaker) {
  std::vector<TokenId> all = std::exchange(speaker->unread, {});
  Append(tokens, &all);
  Append(all, &speaker->seen);
  return all;
}

}  // namespace

int TokensOf(const Dialogue& dialogue, int recall_tokens) {
  size_t tokens = 0;
  for (const Exchange& exchange : dialogue)
    tokens += recall_tokens + exchange.read.size() + exchange.foreseen.size() + exchange.follow +
              exchange.generate;
  return static_cast<int>(tokens);
}

int LongestDialogue(const std::vector<Dialogue>& dialogues, int recall_tokens) {
  int longest = 0;
  for (const Dialogue& dialogue : dialogues)
    longest = std::max(longest, TokensOf(dialogue, recall_tokens));
  return longest;
}

void DialogueRunner::Run(const Dialogue& dialogue, std::span<Speaker> speakers) {
  for (const Exchange& exchange : dialogue) {
    for (Speaker& speaker : speakers) speaker.answers.emplace_back();
    if (!exchange.read.empty()) ReadTurn(exchange, speakers);
    if (!exchange.foreseen.empty() || exchange.follow > 0) Foresee(exchange, speakers);
    if (exchange.generate > 0) Generate(exchange, speakers);
  }
}

// Takes the logits of the speakers that the step computed.
void DialogueRunner::Step(std::span<Speaker* const> speakers) {
  if (speakers.empty()) return;
  driver_->Step();
  for (Speaker* speaker : speakers) {
    const std::span<const float> logits = driver_->LogitsRow(speaker->slot);
    speaker->logits.assign(logits.begin(), logits.end());
  }
}

void DialogueRunner::ReadTurn(const Exchange& exchange, std::span<Speaker> speakers) {
  const std::span<const TokenId> read = exchange.read;
  const std::span<const TokenId> rest = read.subspan(exchange.opening);
  for (Speaker& speaker : speakers) {
    Append(read.first(exchange.opening), &speaker.unread);
    Recall(rest.first(rest.size() - exchange.closing), &speaker);
  }
  Read({rest.begin(), rest.end()}, speakers);
}

void DialogueRunner::Recall(std::span<const TokenId> question, Speaker* speaker) {
  if (speaker->recall_tokens == 0) return;
  std::vector<TokenId> text = speaker->seen;
  Append(speaker->unread, &text);
  const std::vector<Passage> passages =
      FindPassages(*tokenizer_, text, question, speaker->recall_tokens);
  Append(PassageTokens(text, passages), &speaker->unread);
}

void DialogueRunner::Read(const std::vector<TokenId>& tokens, std::span<Speaker> speakers) {
  ReadRuns(tokens, speakers);
  ReadOneByOne(tokens, speakers);
}

// As many caches in a step as the arena has room for.
void DialogueRunner::ReadRuns(const std::vector<TokenId>& tokens, std::span<Speaker> speakers) {
  std::vector<Speaker*> reading;
  int64_t room = arena_tokens_;
  for (Speaker& speaker : speakers) {
    if (!speaker.plan.AppendsRuns()) continue;
    std::vector<TokenId> run = WithUnread(tokens, &speaker);
    const auto length = static_cast<int64_t>(run.size());
    if (length > room) {
      Step(reading);
      reading.clear();
      room = arena_tokens_;
    }
    room -= length;
    driver_->AppendTurn(speaker.slot, speaker.spec, std::move(run));
    reading.push_back(&speaker);
  }
  Step(reading);
}

// The caches whose plans do not append runs.
void DialogueRunner::ReadOneByOne(const std::vector<TokenId>& tokens, std::span<Speaker> speakers) {
  std::vector<std::pair<Speaker*, std::vector<TokenId>>> all;
  for (Speaker& speaker : speakers) {
    if (!speaker.plan.AppendsRuns()) all.emplace_back(&speaker, WithUnread(tokens, &speaker));
  }
  size_t longest = 0;
  for (const auto& [speaker, run] : all) longest = std::max(longest, run.size());
  for (size_t i = 0; i < longest; ++i) {
    std::vector<Speaker*> reading;
    for (const auto& [speaker, run] : all) {
      if (i >= run.size()) continue;
      driver_->DecodeToken(speaker->slot, run[i], driver_->position(speaker->slot));
      reading.push_back(speaker);
    }
    Step(reading);
  }
}

void DialogueRunner::Foresee(const Exchange& exchange, std::span<Speaker> speakers) {
  std::vector<Speaker*> all;
  for (Speaker& speaker : speakers) all.push_back(&speaker);
  const size_t given = exchange.foreseen.size() + exchange.follow;
  for (size_t i = 0; i < given; ++i) {
    const std::vector<float> full = speakers[0].logits;
    const size_t best = Best(full);
    const TokenId token =
        i < exchange.foreseen.size() ? exchange.foreseen[i] : static_cast<TokenId>(best);
    for (Speaker* speaker : all) {
      const std::span<const float> logits = speaker->logits;
      Answer& answer = speaker->answers.back();
      answer.nll += LogSum(logits) - logits[token];
      answer.agreement += Best(logits) == best ? 1.0 : 0.0;
      if (speaker != all[0]) answer.divergence += Divergence(full, logits);
      driver_->DecodeToken(speaker->slot, token, driver_->position(speaker->slot));
      speaker->seen.push_back(token);
    }
    Step(all);
    if (on_foreseen_ != nullptr) on_foreseen_();
  }
  for (Speaker* speaker : all) {
    Answer& answer = speaker->answers.back();
    answer.nll /= static_cast<double>(given);
    answer.agreement /= static_cast<double>(given);
    answer.divergence /= static_cast<double>(given);
  }
}

void DialogueRunner::Generate(const Exchange& exchange, std::span<Speaker> speakers) {
  const std::vector<TokenId>& ends = tokenizer_->eog_ids();
  std::vector<Speaker*> talking;
  for (Speaker& speaker : speakers) talking.push_back(&speaker);
  for (int i = 0; i < exchange.generate && !talking.empty(); ++i) {
    std::vector<Speaker*> going_on;
    for (Speaker* speaker : talking) {
      const TokenId token = driver_->last_token(speaker->slot);
      if (std::find(ends.begin(), ends.end(), token) != ends.end()) continue;
      std::string& text = speaker->answers.back().text;
      text += tokenizer_->TokenBytes(token, true, false);
      const size_t stop = exchange.stop.empty() ? std::string::npos : text.find(exchange.stop);
      if (stop != std::string::npos) {
        text.resize(stop);
      } else if (i + 1 == exchange.generate) {
        speaker->unread = {token};
      } else {
        driver_->Decode(speaker->slot);
        speaker->seen.push_back(token);
        going_on.push_back(speaker);
      }
    }
    if (!going_on.empty()) driver_->Step();
    talking = std::move(going_on);
  }
}

}  // namespace hydrant::eval
