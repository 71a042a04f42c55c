#include "tools/eval/tasks/retrieval.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <string>
#include <utility>

#include "tools/eval/tasks/words.h"

namespace hydrant::eval {
namespace {

// Tokens of the text behind the model's BOS.
int Room(const Composer& composer) {
  return composer.options().length - static_cast<int>(composer.Bos().size());
}

double Evenly(size_t i, size_t count) {
  return (static_cast<double>(i) + 0.5) / static_cast<double>(count);
}

// The depth of a case's only fact: from case to case all depths.
double DepthOfOnly(const Composer& composer, int number) {
  return Evenly(number, composer.options().cases);
}

// A question about the text: part of the prompt (seen), or given after its compression. Both are
// plain text, whatever the model's chat template.
Case Ask(const Composer& composer, int number, const Ids& text, const std::string& question,
         const std::vector<std::string>& answers, bool seen) {
  constexpr int kMoreTokens = 5;
  Case made = composer.BeginPlain(number, text, !seen);
  if (text.empty()) return made;
  // After a space, unless the question has opened a bracket for it.
  const bool opened = question.back() == '<';
  std::string expected;
  for (const std::string& answer : answers)
    expected += (expected.empty() && opened ? "" : " ") + answer;
  Exchange exchange = {.read = composer.Encode(question), .expected = composer.Encode(expected)};
  exchange.generate = static_cast<int>(exchange.expected.size()) + kMoreTokens;
  composer.Add(std::move(exchange), {.answers = answers}, &made);
  return made;
}

Case NumberInText(const Composer& composer, int number, bool seen) {
  std::mt19937_64 rng = composer.Rng(number);
  const std::string secret = DrawNumber(&rng);
  const Hidden line = {fmt::format("\n The secret number of the lighthouse is {}. \n", secret),
                       DepthOfOnly(composer, number)};
  return Ask(
      composer, number, composer.Hide(number, Room(composer), {line}),
      "\n\n Question: What is the secret number of the lighthouse?\n Answer: The secret number "
      "of the lighthouse is",
      {secret}, seen);
}

// After RULER's needle in repeated filler (arXiv 2404.06654).
Case Passkey(const Composer& composer, int number, bool seen) {
  std::mt19937_64 rng = composer.Rng(number);
  const std::string key = DrawNumber(&rng);
  const Ids filler = composer.Repeat(
      "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back "
      "again.\n",
      Room(composer));
  const Hidden line = {
      fmt::format(" The pass key is {0}. Remember it. {0} is the pass key.\n", key),
      DepthOfOnly(composer, number)};
  return Ask(composer, number, composer.HideIn(filler, {line}),
             "\nWhat is the pass key? The pass key is", {key}, seen);
}

Case MultiKey(const Composer& composer, int number, bool seen) {
  static constexpr const char* kPlaces[] = {"lighthouse", "harbour", "museum", "station"};
  std::mt19937_64 rng = composer.Rng(number);
  std::vector<Hidden> lines;
  std::vector<std::string> secrets;
  for (const char* place : kPlaces) {
    secrets.push_back(DrawNumber(&rng));
    lines.push_back({fmt::format("\n The secret number of the {} is {}. \n", place, secrets.back()),
                     Evenly(lines.size(), std::size(kPlaces))});
  }
  const size_t asked = rng() % lines.size();
  return Ask(
      composer, number, composer.Hide(number, Room(composer), lines),
      fmt::format("\n\n Question: What is the secret number of the {0}?\n Answer: The secret "
                  "number of the {0} is",
                  kPlaces[asked]),
      {secrets[asked]}, seen);
}

// A chain of assignments, after RULER's variable tracking: what does the last name stand for?
Case Variables(const Composer& composer, int number, bool seen) {
  static constexpr const char* kNames[] = {"ALPHA", "BRAVO", "DELTA", "GAMMA"};
  std::mt19937_64 rng = composer.Rng(number);
  const std::string value = DrawNumber(&rng);
  std::vector<Hidden> lines;
  for (size_t i = 0; i < std::size(kNames); ++i) {
    const std::string assigned = i == 0 ? value : fmt::format("VAR {}", kNames[i - 1]);
    lines.push_back(
        {fmt::format("\n VAR {} = {}. \n", kNames[i], assigned), Evenly(i, std::size(kNames))});
  }
  return Ask(
      composer, number, composer.Hide(number, Room(composer), lines),
      fmt::format("\n\n Question: What is the value of VAR {0}?\n Answer: The value of VAR {0} is",
                  kNames[std::size(kNames) - 1]),
      {value}, seen);
}

// Pairs "first-second" of all words, in random order.
template <typename Words>
std::vector<std::string> Pairs(const Words& first, const Words& second, std::mt19937_64* rng) {
  std::vector<std::string> pairs;
  for (const auto& a : first) {
    for (const auto& b : second) pairs.push_back(fmt::format("{}-{}", a, b));
  }
  std::shuffle(pairs.begin(), pairs.end(), *rng);
  return pairs;
}

// Different names of lines: the retrieval model's 64 first, then others for longer contexts.
std::vector<std::string> LineNames(std::mt19937_64* rng) {
  static constexpr const char* kFirst[] = {"brave", "quiet", "green", "proud",
                                           "swift", "tired", "happy", "odd"};
  static constexpr const char* kSecond[] = {"otter", "maple", "stone", "cloud",
                                            "tiger", "lemon", "piano", "wheel"};
  std::vector<std::string> names = Pairs(kFirst, kSecond, rng);
  std::mt19937_64 of_more = *rng;  // a context of few lines draws nothing more
  for (std::string& name : Pairs(Adjectives(), Nouns(), &of_more)) {
    if (std::find(names.begin(), names.end(), name) == names.end())
      names.push_back(std::move(name));
  }
  return names;
}

// LongEval's lines: each has a number; the question asks for one.
Case Lines(const Composer& composer, int number, bool seen) {
  std::mt19937_64 rng = composer.Rng(number);
  std::vector<std::pair<std::string, std::string>> lines;  // names and values
  Ids context;
  for (const std::string& name : LineNames(&rng)) {
    const std::string value = DrawNumber(&rng);
    const Ids line =
        composer.Encode(fmt::format("line {}: REGISTER_CONTENT is <{}>\n", name, value));
    if (context.size() + line.size() > static_cast<size_t>(Room(composer))) break;
    context.insert(context.end(), line.begin(), line.end());
    lines.push_back({name, value});
  }
  if (lines.empty()) return {};
  const auto& [asked, content] = lines[rng() % lines.size()];
  return Ask(composer, number, context,
             fmt::format("\nQuestion: What is the REGISTER_CONTENT in line {0}?\nAnswer: The "
                         "REGISTER_CONTENT in line {0} is <",
                         asked),
             {content}, seen);
}

template <Case (*kMake)(const Composer&, int, bool), bool kSeen>
Case Make(const Composer& composer, int number) {
  return kMake(composer, number, kSeen);
}

template <Case (*kMake)(const Composer&, int, bool)>
void AddBoth(const std::string& name, const std::string& description, std::vector<Task>* tasks) {
  tasks->push_back({name, description + "; the question is compressed with it", Make<kMake, true>});
  tasks->push_back(
      {name + "-unseen", description + "; the question comes afterwards", Make<kMake, false>});
}

}  // namespace

std::vector<Task> RetrievalTasks() {
  std::vector<Task> tasks;
  AddBoth<NumberInText>("needle", "a number in a text", &tasks);
  AddBoth<Passkey>("passkey", "a number in repeated filler", &tasks);
  AddBoth<MultiKey>("multikey", "one of four numbers in a text", &tasks);
  AddBoth<Variables>("variables", "the value of the last of a chain of names", &tasks);
  AddBoth<Lines>("lines", "the number of one of many lines (LongEval)", &tasks);
  return tasks;
}

}  // namespace hydrant::eval
