#include "tools/eval/tasks.h"

#include <algorithm>
#include <functional>
#include <iterator>
#include <nlohmann/json.hpp>
#include <numeric>
#include <random>
#include <utility>

#include "fmt/format.h"

namespace hydrant::eval {
namespace {

using Ids = std::vector<TokenId>;

// Enough characters for one token in most texts.
constexpr size_t kMaxCharactersAToken = 8;

struct Maker {
  const TaskOptions& options;
  const std::vector<std::string>& texts;
  const Laboratory& laboratory;

  // Piece `number` of the text, cut into one evenly spaced piece per case, starting at a line;
  // empty if the text is too short.
  Ids Piece(const std::string& text, int number, int tokens) const {
    const size_t near = text.size() * (2 * number + 1) / (2 * options.cases);
    const size_t line = text.find('\n', near);
    if (line == std::string::npos) return {};
    for (size_t characters = kMaxCharactersAToken * tokens;; characters *= 2) {
      Ids ids = laboratory.Encode(text.substr(line + 1, characters));
      const bool is_enough = static_cast<int>(ids.size()) >= tokens;
      if (!is_enough && line + 1 + characters < text.size()) continue;  // long tokens
      if (!is_enough) return {};
      ids.resize(tokens);
      return ids;
    }
  }
};

// A fact in a context, and the question about it.
struct Fact {
  std::string sentence;
  std::string answer;
};

// Inserts each sentence at its place, and cuts the haystack to make room.
Ids Hide(const Maker& maker, const Ids& haystack, const std::vector<Fact>& facts,
         double first_depth) {
  std::vector<Ids> sentences;
  size_t needed = 0;
  for (const Fact& fact : facts) {
    sentences.push_back(maker.laboratory.Encode(fact.sentence));
    needed += sentences.back().size();
  }
  const size_t room = haystack.size() - std::min(haystack.size(), needed);
  Ids hidden;
  size_t used = 0;
  for (size_t i = 0; i < facts.size(); ++i) {
    const double depth =
        facts.size() == 1 ? first_depth : (static_cast<double>(i) + 0.5) / facts.size();
    const auto until = static_cast<size_t>(depth * static_cast<double>(room));
    hidden.insert(hidden.end(), haystack.begin() + used, haystack.begin() + until);
    hidden.insert(hidden.end(), sentences[i].begin(), sentences[i].end());
    used = until;
  }
  hidden.insert(hidden.end(), haystack.begin() + used, haystack.begin() + room);
  return hidden;
}

std::string Number(std::mt19937_64* rng) { return std::to_string(10000 + (*rng)() % 90000); }

// A question about `context`: part of the prompt (seen), or given after its compaction.
Case Ask(const Maker& maker, Ids context, const std::string& question,
         std::vector<std::string> answers, bool seen) {
  Case made;
  const Ids asked = maker.laboratory.Encode(question);
  made.trial.context = static_cast<int>(context.size() + (seen ? asked.size() : 0));
  made.trial.question_tokens = seen ? 0 : static_cast<int>(asked.size());
  made.trial.tokens = std::move(context);
  made.trial.tokens.insert(made.trial.tokens.end(), asked.begin(), asked.end());
  // After a space, unless the question has opened a bracket for it.
  const bool opened = !question.empty() && question.back() == '<';
  std::string expected;
  for (const std::string& answer : answers)
    expected += (expected.empty() && opened ? "" : " ") + answer;
  made.trial.expected = maker.laboratory.Encode(expected);
  made.trial.generate = static_cast<int>(made.trial.expected.size()) + 5;
  made.answers = std::move(answers);
  return made;
}

Case Perplexity(const Maker& maker, int number) {
  Case made;
  const std::string& text = maker.texts[number % maker.texts.size()];
  made.trial.tokens = maker.Piece(text, number, maker.options.length + maker.options.given);
  made.trial.context = maker.options.length;
  return made;
}

Case Needle(const Maker& maker, int number, bool seen) {
  std::mt19937_64 rng(maker.options.seed * 1000 + number);
  const std::string secret = Number(&rng);
  const Fact fact = {fmt::format("\n The secret number of the lighthouse is {}. \n", secret),
                     secret};
  const Ids haystack = maker.Piece(maker.texts[0], number, maker.options.length);
  if (haystack.empty()) return {};
  return Ask(
      maker, Hide(maker, haystack, {fact}, (number + 0.5) / maker.options.cases),
      "\n\n Question: What is the secret number of the lighthouse?\n Answer: The secret number "
      "of the lighthouse is",
      {secret}, seen);
}

// After RULER's needle in repeated filler (arXiv 2404.06654).
Case Passkey(const Maker& maker, int number, bool seen) {
  std::mt19937_64 rng(maker.options.seed * 1000 + number);
  const std::string key = Number(&rng);
  Ids filler;
  const Ids sentence = maker.laboratory.Encode(
      "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back "
      "again.\n");
  while (static_cast<int>(filler.size()) < maker.options.length)
    filler.insert(filler.end(), sentence.begin(), sentence.end());
  filler.resize(maker.options.length);
  const Fact fact = {fmt::format(" The pass key is {0}. Remember it. {0} is the pass key.\n", key),
                     key};
  return Ask(maker, Hide(maker, filler, {fact}, (number + 0.5) / maker.options.cases),
             "\nWhat is the pass key? The pass key is", {key}, seen);
}

Case MultiKey(const Maker& maker, int number, bool seen) {
  static constexpr const char* kPlaces[] = {"lighthouse", "harbour", "museum", "station"};
  std::mt19937_64 rng(maker.options.seed * 1000 + number);
  std::vector<Fact> facts;
  for (const char* place : kPlaces) {
    const std::string secret = Number(&rng);
    facts.push_back(
        {fmt::format("\n The secret number of the {} is {}. \n", place, secret), secret});
  }
  const size_t asked = rng() % facts.size();
  const Ids haystack = maker.Piece(maker.texts[0], number, maker.options.length);
  if (haystack.empty()) return {};
  return Ask(
      maker, Hide(maker, haystack, facts, 0),
      fmt::format("\n\n Question: What is the secret number of the {0}?\n Answer: The secret "
                  "number of the {0} is",
                  kPlaces[asked]),
      {facts[asked].answer}, seen);
}

// Several values of one key, after RULER (arXiv 2404.06654): all must be named.
Case MultiValue(const Maker& maker, int number, bool seen) {
  std::mt19937_64 rng(maker.options.seed * 1000 + number);
  std::vector<Fact> facts;
  std::vector<std::string> answers;
  for (int i = 0; i < 3; ++i) {
    answers.push_back(Number(&rng));
    facts.push_back({fmt::format("\n A secret number of the lighthouse is {}. \n", answers.back()),
                     answers.back()});
  }
  const Ids haystack = maker.Piece(maker.texts[0], number, maker.options.length);
  if (haystack.empty()) return {};
  return Ask(
      maker, Hide(maker, haystack, facts, 0),
      "\n\n Question: What are the three secret numbers of the lighthouse?\n Answer: The three "
      "secret numbers of the lighthouse are",
      std::move(answers), seen);
}

// A chain of assignments, after RULER's variable tracking: what does the last name stand for?
Case Variables(const Maker& maker, int number, bool seen) {
  static constexpr const char* kNames[] = {"ALPHA", "BRAVO", "DELTA", "GAMMA"};
  std::mt19937_64 rng(maker.options.seed * 1000 + number);
  const std::string value = Number(&rng);
  std::vector<Fact> facts = {{fmt::format("\n VAR {} = {}. \n", kNames[0], value), value}};
  for (size_t i = 1; i < std::size(kNames); ++i)
    facts.push_back({fmt::format("\n VAR {} = VAR {}. \n", kNames[i], kNames[i - 1]), value});
  const Ids haystack = maker.Piece(maker.texts[0], number, maker.options.length);
  if (haystack.empty()) return {};
  return Ask(
      maker, Hide(maker, haystack, facts, 0),
      fmt::format("\n\n Question: What is the value of VAR {0}?\n Answer: The value of VAR {0} is",
                  kNames[std::size(kNames) - 1]),
      {value}, seen);
}

// The most frequent word among others, after RULER's common words.
Case CommonWord(const Maker& maker, int number, bool seen) {
  static constexpr const char* kWords[] = {
      "apple",  "river",  "candle", "window", "garden", "silver", "bridge", "pencil",
      "rabbit", "summer", "letter", "market", "island", "cotton", "engine", "flower"};
  constexpr int kTimes = 4;  // relative to any other word
  std::mt19937_64 rng(maker.options.seed * 1000 + number);
  const std::string common = kWords[rng() % std::size(kWords)];
  std::vector<Ids> words;
  for (const char* word : kWords)
    words.push_back(maker.laboratory.Encode(fmt::format(" {},", word)));
  const Ids of_common = maker.laboratory.Encode(fmt::format(" {},", common));
  std::vector<Ids> drawn;
  int tokens = 0;
  while (tokens < maker.options.length) {
    drawn.push_back(rng() % kTimes == 0 ? of_common : words[rng() % words.size()]);
    tokens += static_cast<int>(drawn.back().size());
  }
  Ids context;
  for (const Ids& word : drawn) context.insert(context.end(), word.begin(), word.end());
  context.resize(maker.options.length);
  return Ask(
      maker, std::move(context),
      "\n\n Question: Which word is the most common in the list?\n Answer: The most common word is",
      {common}, seen);
}

// LongEval's lines: each has a number; the question asks for one.
Case Lines(const Maker& maker, int number, bool seen) {
  static constexpr const char* kFirst[] = {"brave", "quiet", "green", "proud",
                                           "swift", "tired", "happy", "odd"};
  static constexpr const char* kSecond[] = {"otter", "maple", "stone", "cloud",
                                            "tiger", "lemon", "piano", "wheel"};
  std::mt19937_64 rng(maker.options.seed * 1000 + number);
  std::vector<int> names(std::size(kFirst) * std::size(kSecond));
  std::iota(names.begin(), names.end(), 0);
  std::shuffle(names.begin(), names.end(), rng);
  std::vector<Fact> lines;
  Ids context;
  for (const int name : names) {
    const std::string value = Number(&rng);
    const std::string full =
        fmt::format("{}-{}", kFirst[name / std::size(kSecond)], kSecond[name % std::size(kSecond)]);
    const Ids line =
        maker.laboratory.Encode(fmt::format("line {}: REGISTER_CONTENT is <{}>\n", full, value));
    if (context.size() + line.size() > static_cast<size_t>(maker.options.length)) break;
    context.insert(context.end(), line.begin(), line.end());
    lines.push_back({full, value});
  }
  const Fact asked = lines.empty() ? Fact() : lines[rng() % lines.size()];
  return Ask(maker, std::move(context),
             fmt::format("\nQuestion: What is the REGISTER_CONTENT in line {0}?\nAnswer: The "
                         "REGISTER_CONTENT in line {0} is <",
                         asked.sentence),
             {asked.answer}, seen);
}

struct Task {
  TaskInfo info;
  std::function<Case(const Maker&, int)> make;
};

using Retrieval = Case (*)(const Maker&, int, bool);

const std::vector<Task>& Tasks() {
  static const auto* tasks = [] {
    auto* list = new std::vector<Task>;
    list->push_back(
        {{"perplexity", "how well the tokens after a long prompt are foreseen"}, Perplexity});
    const std::pair<TaskInfo, Retrieval> retrievals[] = {
        {{"needle", "a number in a text"}, Needle},
        {{"passkey", "a number in repeated filler"}, Passkey},
        {{"multikey", "one of four numbers in a text"}, MultiKey},
        {{"multivalue", "three numbers of one name in a text"}, MultiValue},
        {{"variables", "what the last of a chain of names stands for"}, Variables},
        {{"commonword", "the most common word of a list"}, CommonWord},
        {{"lines", "the number of one of many lines (LongEval)"}, Lines}};
    for (const auto& retrieval : retrievals) {
      for (const bool seen : {true, false}) {
        const TaskInfo& info = retrieval.first;
        const Retrieval make = retrieval.second;
        list->push_back(
            {{info.name + (seen ? "" : "-unseen"),
              info.description + (seen ? "; the question is compressed with it"
                                       : "; the question comes afterwards")},
             [make, seen](const Maker& maker, int number) { return make(maker, number, seen); }});
      }
    }
    return list;
  }();
  return *tasks;
}

}  // namespace

double Found(const Case& asked, const std::string& text) {
  double found = 0;
  for (const std::string& answer : asked.answers)
    found += text.find(answer) != std::string::npos ? 1.0 : 0.0;
  return asked.answers.empty() ? 0.0 : found / static_cast<double>(asked.answers.size());
}

const std::vector<TaskInfo>& ListTasks() {
  static const auto* infos = [] {
    auto* list = new std::vector<TaskInfo>;
    for (const Task& task : Tasks()) list->push_back(task.info);
    return list;
  }();
  return *infos;
}

absl::StatusOr<std::vector<Case>> MakeCases(const std::string& name, const TaskOptions& options,
                                            const std::vector<std::string>& texts,
                                            const Laboratory& laboratory) {
  const auto task = std::find_if(Tasks().begin(), Tasks().end(),
                                 [&](const Task& known) { return known.info.name == name; });
  if (task == Tasks().end()) {
    std::string names;
    for (const TaskInfo& info : ListTasks()) names += (names.empty() ? "" : ", ") + info.name;
    return absl::InvalidArgumentError(
        fmt::format("--tasks: '{}' is unknown; one of {}", name, names));
  }
  const Maker maker = {options, texts, laboratory};
  std::vector<Case> cases;
  for (int number = 0; number < options.cases; ++number) {
    Case made = task->make(maker, number);
    if (made.trial.tokens.empty()) {
      return absl::InvalidArgumentError(
          fmt::format("--text: too short for case {} of {} with {} tokens; give a longer one, or "
                      "fewer --cases or a shorter --length",
                      number, name, options.length));
    }
    made.task = name;
    made.number = number;
    cases.push_back(std::move(made));
  }
  return cases;
}

std::string CasesAsJson(const std::vector<Case>& cases) {
  std::string lines;
  for (const Case& made : cases) {
    const nlohmann::json line = {{"task", made.task},
                                 {"case", made.number},
                                 {"tokens", made.trial.tokens},
                                 {"context", made.trial.context},
                                 {"generate", made.trial.generate},
                                 {"expected", made.trial.expected},
                                 {"answers", made.answers}};
    lines += line.dump() + "\n";
  }
  return lines;
}

}  // namespace hydrant::eval
