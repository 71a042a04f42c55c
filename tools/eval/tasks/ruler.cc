#include "tools/eval/tasks/ruler.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <string>
#include <utility>

#include "tools/eval/tasks/words.h"

namespace hydrant::eval {
namespace {

constexpr std::string_view kFiller =
    "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again.\n";

// A key and its secret.
struct Needle {
  std::string key;
  std::string value;

  std::string Sentence() const {
    return fmt::format("\nThe secret code of the {} is {}.\n", key, value);
  }
};

enum class Haystack { kFiller, kText, kNeedles };

struct NeedleTask {
  const char* name;
  Haystack haystack = Haystack::kText;
  int keys = 1;
  int values = 1;   // of each key
  int queries = 1;  // keys that are asked for
  bool uuid_keys = false;
  bool uuid_values = false;
};

// "old lantern"; keys of a case differ.
class Keys {
 public:
  Keys(bool uuids, std::mt19937_64* rng)
      : uuids_(uuids), adjectives_(Adjectives(), rng), nouns_(Nouns(), rng), rng_(rng) {}

  std::string Next() {
    if (uuids_) return "box " + DrawUuid(rng_);
    std::string key = adjectives_.Next() + " " + nouns_.Next();
    // The words come around together: another pair.
    while (!given_.insert(key).second) key = adjectives_.Next() + " " + Draw(Nouns(), rng_).Next();
    return key;
  }

 private:
  bool uuids_;
  Draw adjectives_, nouns_;
  std::mt19937_64* rng_;
  std::set<std::string> given_;
};

std::vector<Needle> DrawNeedles(const NeedleTask& task, Keys* keys, std::mt19937_64* rng) {
  std::vector<Needle> needles;
  for (int key = 0; key < task.keys; ++key) {
    const std::string name = keys->Next();
    for (int value = 0; value < task.values; ++value)
      needles.push_back({name, task.uuid_values ? DrawUuid(rng) : DrawNumber(rng)});
  }
  return needles;
}

// Only needles, as many as there is room for.
Ids HaystackOfNeedles(const Composer& composer, const NeedleTask& task, int tokens, Keys* keys,
                      std::mt19937_64* rng) {
  Ids ids;
  while (static_cast<int>(ids.size()) < tokens) {
    const Needle other = {keys->Next(), task.uuid_values ? DrawUuid(rng) : DrawNumber(rng)};
    const Ids sentence = composer.Encode(other.Sentence());
    ids.insert(ids.end(), sentence.begin(), sentence.end());
  }
  ids.resize(tokens);
  return ids;
}

Case MakeNeedles(const NeedleTask& task, const Composer& composer, int number) {
  std::mt19937_64 rng = composer.Rng(number);
  Keys keys(task.uuid_keys, &rng);
  const std::vector<Needle> needles = DrawNeedles(task, &keys, &rng);
  std::vector<Hidden> hidden;
  for (size_t i = 0; i < needles.size(); ++i) {
    const double depth = needles.size() == 1 ? (number + 0.5) / composer.options().cases
                                             : (static_cast<double>(i) + 0.5) / needles.size();
    hidden.push_back({needles[i].Sentence(), depth});
  }
  const int room = composer.Room();
  const Ids haystack = task.haystack == Haystack::kFiller ? composer.Repeat(kFiller, room)
                       : task.haystack == Haystack::kText
                           ? composer.Piece(composer.texts()[0], number, room)
                           : HaystackOfNeedles(composer, task, room, &keys, &rng);
  if (haystack.empty()) return {};
  const size_t first = rng() % (task.keys - task.queries + 1) * task.values;
  std::vector<std::string> asked, answers;
  for (int i = 0; i < task.queries * task.values; ++i) {
    const Needle& needle = needles[first + i];
    if (asked.empty() || asked.back() != needle.key) asked.push_back(needle.key);
    answers.push_back(needle.value);
  }
  const bool several = answers.size() > 1;
  const std::string what =
      fmt::format("secret code{} of the {}", several ? "s" : "", fmt::join(asked, ", the "));
  const std::string expected = fmt::format("{}", fmt::join(answers, ", "));
  Case made = composer.Begin(number, composer.HideIn(haystack, hidden));
  composer.Add(
      composer.Ask(
          fmt::format("What {} {} that the text names?", several ? "are all the" : "is the", what),
          fmt::format("The {} {}", what, several ? "are" : "is"), expected,
          (task.uuid_values ? 30 : 8) * static_cast<int>(answers.size()) + 6),
      {.task = task.name, .answers = answers, .depth = several ? -1 : hidden[first].depth}, &made);
  return made;
}

constexpr NeedleTask kSingle1 = {.name = "niah_single_1", .haystack = Haystack::kFiller};
constexpr NeedleTask kSingle2 = {.name = "niah_single_2"};
constexpr NeedleTask kSingle3 = {.name = "niah_single_3", .uuid_values = true};
constexpr NeedleTask kMultiKey1 = {.name = "niah_multikey_1", .keys = 4};
constexpr NeedleTask kMultiKey2 = {.name = "niah_multikey_2", .haystack = Haystack::kNeedles};
constexpr NeedleTask kMultiKey3 = {.name = "niah_multikey_3",
                                   .haystack = Haystack::kNeedles,
                                   .uuid_keys = true,
                                   .uuid_values = true};
constexpr NeedleTask kMultiValue = {.name = "niah_multivalue", .values = 4};
constexpr NeedleTask kMultiQuery = {.name = "niah_multiquery", .keys = 4, .queries = 4};

template <const NeedleTask& kTask>
Case MakeNeedlesOf(const Composer& composer, int number) {
  return MakeNeedles(kTask, composer, number);
}

std::string DrawVariable(std::mt19937_64* rng) {
  std::string name;
  for (int i = 0; i < 5; ++i) name += static_cast<char>('A' + (*rng)() % 26);
  return name;
}

// A chain of assignments: which variables have its value?
Case VariableTracking(const Composer& composer, int number) {
  constexpr int kHops = 4;
  std::mt19937_64 rng = composer.Rng(number);
  const std::string value = DrawNumber(&rng);
  std::vector<std::string> names = {DrawVariable(&rng)};
  std::vector<Hidden> hidden = {
      {fmt::format("\nVAR {} = {}\n", names[0], value), 0.5 / (kHops + 1)}};
  for (int hop = 1; hop <= kHops; ++hop) {
    names.push_back(DrawVariable(&rng));
    hidden.push_back({fmt::format("\nVAR {} = VAR {}\n", names[hop], names[hop - 1]),
                      (hop + 0.5) / (kHops + 1)});
  }
  Case made =
      composer.Begin(number, composer.HideIn(composer.Repeat(kFiller, composer.Room()), hidden));
  const std::string cue = fmt::format("The variables that have the value {} are", value);
  const std::string expected = fmt::format("{}", fmt::join(names, ", "));
  composer.Add(
      composer.Ask(fmt::format("Follow the assignments in the text. Which variables have the "
                               "value {}? There are {}.",
                               value, kHops + 1),
                   cue, expected, 40),
      {.task = "vt", .answers = names}, &made);
  return made;
}

// A numbered list of words, in random order.
std::string NumberedList(std::vector<std::string> words, std::mt19937_64* rng) {
  for (size_t i = words.size(); i > 1; --i) std::swap(words[i - 1], words[(*rng)() % i]);
  std::string list;
  for (size_t i = 0; i < words.size(); ++i) list += fmt::format("{}. {} ", i + 1, words[i]);
  return list;
}

// Ten words are common, the others are rare.
Case CommonWords(const Composer& composer, int number) {
  constexpr int kCommon = 10, kTokensAWord = 6;
  constexpr double kShareOfCommon = 0.6;
  std::mt19937_64 rng = composer.Rng(number);
  std::vector<std::string_view> all(Nouns().begin(), Nouns().end());
  all.insert(all.end(), Adjectives().begin(), Adjectives().end());
  Draw draw(all, &rng);
  std::vector<std::string> common, words;
  for (int i = 0; i < kCommon; ++i) common.push_back(draw.Next());
  std::vector<std::string> rare;
  for (size_t i = kCommon; i < all.size(); ++i) rare.push_back(draw.Next());
  const int count = std::max(3 * kCommon, composer.Room() / kTokensAWord);
  for (int i = 0; i < count; ++i) {
    const bool is_common = i < kShareOfCommon * count;
    words.push_back(is_common ? common[i % kCommon] : rare[i % rare.size()]);
  }
  Ids ids = composer.Encode(NumberedList(std::move(words), &rng));
  ids.resize(std::min<size_t>(ids.size(), composer.Room()));
  Case made = composer.Begin(number, ids);
  composer.Add(composer.Ask("What are the 10 most common words in the list?",
                            "The 10 most common words in the list are",
                            fmt::format("{}", fmt::join(common, ", ")), 60),
               {.task = "cwe", .answers = common}, &made);
  return made;
}

// Invented words whose frequencies fall with the square of their rank: which three are the most
// frequent?
Case FrequentWords(const Composer& composer, int number) {
  constexpr int kDifferent = 40, kAsked = 3, kTokensAWord = 5;
  constexpr double kFall = 2.0;
  constexpr std::string_view kFirst = "bdfgklmnprst", kSecond = "aeiou";
  std::mt19937_64 rng = composer.Rng(number);
  std::vector<std::string> names;
  while (static_cast<int>(names.size()) < kDifferent) {
    std::string name;
    for (int i = 0; i < 3; ++i) {
      name += kFirst[rng() % kFirst.size()];
      name += kSecond[rng() % kSecond.size()];
    }
    if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
  }
  double sum = 0;
  for (int rank = 1; rank <= kDifferent; ++rank) sum += std::pow(rank, -kFall);
  const int count = std::max(2 * kDifferent, composer.Room() / kTokensAWord);
  std::vector<std::string> words;
  for (int rank = 1; rank <= kDifferent; ++rank) {
    const auto times = static_cast<int>(std::ceil(count * std::pow(rank, -kFall) / sum));
    words.insert(words.end(), times, names[rank - 1]);
  }
  for (size_t i = words.size(); i > 1; --i) std::swap(words[i - 1], words[rng() % i]);
  Ids ids = composer.Encode(fmt::format("{}", fmt::join(words, " ... ")));
  ids.resize(std::min<size_t>(ids.size(), composer.Room()));
  const std::vector<std::string> answers(names.begin(), names.begin() + kAsked);
  Case made = composer.Begin(number, ids);
  composer.Add(composer.Ask("Which three words appear most often in the coded text above?",
                            "The three words that appear most often are",
                            fmt::format("{}", fmt::join(answers, ", ")), 30),
               {.task = "fwe", .answers = answers}, &made);
  return made;
}

struct Person {
  std::string name, town, trade, teacher;
};

// Passages on persons, as many as there is room for; the fewest is two.
std::vector<Person> DrawPersons(int count, std::mt19937_64* rng) {
  std::vector<Person> persons;
  std::set<std::string> names;
  while (static_cast<int>(persons.size()) < count) {
    const auto pick = [&](std::span<const std::string_view> words) {
      return std::string(words[(*rng)() % words.size()]);
    };
    Person person = {pick(FirstNames()) + " " + pick(LastNames()), pick(Towns()), pick(Trades()),
                     ""};
    if (names.insert(person.name).second) persons.push_back(std::move(person));
  }
  for (size_t i = 0; i < persons.size(); ++i)
    persons[i].teacher = persons[(i + 1) % persons.size()].name;
  return persons;
}

std::string Passage(int number, const Person& person) {
  return fmt::format(
      "Document {}: {} grew up in {} and became a {}. At the age of sixteen the later {} was taken "
      "on as an apprentice by {}, with whom there was a long friendship.\n\n",
      number, person.name, person.town, person.trade, person.trade, person.teacher);
}

// hops 1: a question about a person. 2: about that person's teacher, in another passage.
Case Passages(const Composer& composer, int number, int hops) {
  std::mt19937_64 rng = composer.Rng(number);
  const int a_passage =
      static_cast<int>(composer.Encode(Passage(10, DrawPersons(2, &rng)[0])).size());
  const int count = std::clamp(composer.Room() / a_passage - 1, 2, 900);
  const std::vector<Person> persons = DrawPersons(count, &rng);
  std::vector<int> order(count);
  for (int i = 0; i < count; ++i) order[i] = i;
  for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[rng() % i]);
  std::string text;
  for (int i = 0; i < count; ++i) text += Passage(i + 1, persons[order[i]]);
  const size_t asked = rng() % persons.size();
  const Person& answer = persons[(asked + hops - 1) % persons.size()];
  const std::string question =
      hops == 1
          ? fmt::format("In which town did {} grow up?", persons[asked].name)
          : fmt::format("In which town did the one who taught {} grow up?", persons[asked].name);
  const std::string cue = hops == 1 ? persons[asked].name + " grew up in"
                                    : fmt::format("{} was taught by", persons[asked].name);
  const std::string expected =
      hops == 1 ? answer.town : fmt::format("{}, who grew up in {}", answer.name, answer.town);
  Ids ids = composer.Encode(text);
  ids.resize(std::min<size_t>(ids.size(), composer.Room()));
  Case made = composer.Begin(number, ids);
  composer.Add(composer.Ask(question, cue, expected, hops == 1 ? 8 : 24),
               {.task = hops == 1 ? "qa_1" : "qa_2", .answers = {answer.town}}, &made);
  return made;
}

}  // namespace

std::vector<Task> RulerTasks() {
  const auto one_hop = [](const Composer& c, int number) { return Passages(c, number, 1); };
  const auto two_hops = [](const Composer& c, int number) { return Passages(c, number, 2); };
  return {{"niah_single_1", "RULER: a code in repeated filler", MakeNeedlesOf<kSingle1>},
          {"niah_single_2", "RULER: a code in a text", MakeNeedlesOf<kSingle2>},
          {"niah_single_3", "RULER: a UUID in a text", MakeNeedlesOf<kSingle3>},
          {"niah_multikey_1", "RULER: one of four codes in a text", MakeNeedlesOf<kMultiKey1>},
          {"niah_multikey_2", "RULER: one of many codes", MakeNeedlesOf<kMultiKey2>},
          {"niah_multikey_3", "RULER: one of many UUIDs", MakeNeedlesOf<kMultiKey3>},
          {"niah_multivalue", "RULER: four codes of one name", MakeNeedlesOf<kMultiValue>},
          {"niah_multiquery", "RULER: the codes of four names", MakeNeedlesOf<kMultiQuery>},
          {"vt", "RULER: the variables of a chain of assignments", VariableTracking},
          {"cwe", "RULER: the ten common words of a list", CommonWords},
          {"fwe", "RULER: the three most frequent words", FrequentWords},
          {"qa_1", "RULER: a question about one of many passages", one_hop},
          {"qa_2", "RULER: a question about two of many passages", two_hops}};
}

}  // namespace hydrant::eval
