#include "tools/eval/tasks/facts.h"

#include <fmt/format.h>

#include <string_view>
#include <utility>

#include "tools/eval/tasks/words.h"

namespace hydrant::eval {
namespace {

// A kind of fact: texts with {0} for its subject and {1} for its answer.
struct Template {
  const char* sentence;
  const char* exact;
  const char* other;
};

constexpr Template kNames[] = {
    {"The captain of the ferry {0} is called {1}.", "What is the captain of the ferry {0} called?",
     "Who commands the boat {0}?"},
    {"The founder of the {0} choir was {1}.", "Who was the founder of the {0} choir?",
     "Which person started the singing group {0}?"}};
constexpr Template kPlaces[] = {
    {"The spare keys of the {0} museum are kept in {1}.",
     "Where are the spare keys of the {0} museum kept?",
     "In which town would you have to look for what opens the doors of the {0} museum?"},
    {"The yearly meeting of the {0} club takes place in {1}.",
     "Where does the yearly meeting of the {0} club take place?",
     "To which town do the members of the {0} club travel every year?"}};
constexpr Template kColours[] = {
    {"The front door of the {0} inn is painted {1}.",
     "What colour is the front door of the {0} inn painted?",
     "A guest stands before the entrance of the {0} inn. Which colour does the guest see on it?"},
    {"The flag of the {0} brigade is {1}.", "What colour is the flag of the {0} brigade?",
     "Which colour does the banner of the firefighters called {0} have?"}};
constexpr Template kTimes[] = {
    {"The night train {0} leaves at {1}.", "When does the night train {0} leave?",
     "By what time must a passenger of the sleeper {0} be on the platform?"},
    {"The gates of the {0} park close at {1}.", "When do the gates of the {0} park close?",
     "Until what time can one stay in the {0} park?"}};
constexpr Template kObjects[] = {
    {"In the safe of the {0} bank lies {1}.", "What lies in the safe of the {0} bank?",
     "Which thing is locked away at the {0} bank?"},
    {"The winner of the {0} race receives {1}.", "What does the winner of the {0} race receive?",
     "Which prize awaits the fastest runner of the {0} race?"}};
constexpr Template kIdentifiers[] = {
    {"The parcel for the {0} office has the tracking code {1}.",
     "Which tracking code has the parcel for the {0} office?",
     "With which letters and digits can one follow the delivery to the {0} office?"},
    {"The wireless password of the {0} library is {1}.",
     "What is the wireless password of the {0} library?",
     "What has to be typed in to go online at the {0} library?"}};
constexpr Template kNumbers[] = {
    {"The {0} tower has {1} steps.", "How many steps does the {0} tower have?",
     "How many stairs does one climb to the top of the {0} tower?"},
    {"The {0} orchard has {1} trees.", "How many trees does the {0} orchard have?",
     "What is the count of all the trees that grow in the {0} orchard?"}};

std::string DrawTime(std::mt19937_64* rng) {
  const auto hour = (*rng)() % 24, minute = (*rng)() % 60;
  return fmt::format("{:02}:{:02}", hour, minute);
}

std::string DrawIdentifier(std::mt19937_64* rng) {
  std::string code;
  for (int i = 0; i < 3; ++i) code += static_cast<char>('A' + (*rng)() % 26);
  return code + "-" + std::to_string(100 + (*rng)() % 900);
}

std::string DrawPerson(std::mt19937_64* rng) {
  const std::string first = Draw(FirstNames(), rng).Next();
  return first + " " + Draw(LastNames(), rng).Next();
}

Fact Fill(const Template& kind, const std::string& subject, const std::string& answer) {
  return {fmt::format(fmt::runtime(kind.sentence), subject, answer),
          fmt::format(fmt::runtime(kind.exact), subject),
          fmt::format(fmt::runtime(kind.other), subject), answer};
}

std::string OnItsOwn(const std::string& sentence) { return "\n" + sentence + "\n"; }

// A thing of the sentence in the words of an answer: "a compass" is found as "compass".
std::string WithoutArticle(const std::string& object) {
  return object.substr(object.find(' ') + 1);
}

void AskAbout(const std::string& answer, const std::string& question, const char* task,
              double depth, const Composer& composer, Case* to) {
  composer.Add(composer.Ask(question, "", answer, kAnswerTokens),
               {.task = task, .answers = {answer}, .depth = depth}, to);
}

// The facts spread over a text.
std::vector<Hidden> Spread(const std::vector<std::string>& sentences) {
  std::vector<Hidden> hidden;
  for (size_t i = 0; i < sentences.size(); ++i) {
    hidden.push_back({OnItsOwn(sentences[i]),
                      (static_cast<double>(i) + 0.5) / static_cast<double>(sentences.size())});
  }
  return hidden;
}

Case Facts(const Composer& composer, int number) {
  std::mt19937_64 rng = composer.Rng(number);
  const std::vector<Fact> facts = DrawFacts(&rng);
  std::vector<std::string> sentences;
  sentences.reserve(facts.size());
  for (const Fact& fact : facts) sentences.push_back(fact.sentence);
  const std::vector<Hidden> hidden = Spread(sentences);
  Case made = composer.Begin(number, composer.Hide(number, composer.Room(), hidden));
  if (made.trial.context.empty()) return made;
  for (size_t i = 0; i < facts.size(); ++i) {
    AskAbout(facts[i].answer, facts[i].exact, "facts-exact", hidden[i].depth, composer, &made);
    AskAbout(facts[i].answer, facts[i].other, "facts-other", hidden[i].depth, composer, &made);
  }
  return made;
}

// Three pairs of facts: a person's office and a person's town. Their sentences stand apart.
Case Joined(const Composer& composer, int number) {
  constexpr int kPairs = 3;
  std::mt19937_64 rng = composer.Rng(number);
  Draw first(FirstNames(), &rng), last(LastNames(), &rng), towns(Towns(), &rng),
      nouns(Nouns(), &rng);
  std::vector<std::string> sentences, later, questions;
  std::vector<std::string> answers;
  for (int i = 0; i < kPairs; ++i) {
    const std::string person = first.Next() + " " + last.Next(), town = towns.Next(),
                      noun = nouns.Next();
    sentences.push_back(fmt::format("The {} prize of this year went to {}.", noun, person));
    later.push_back(fmt::format("{} has lived in {} for ten years.", person, town));
    answers.push_back(town);
    questions.push_back(
        fmt::format("In which town does the winner of this year's {} prize live?", noun));
  }
  sentences.insert(sentences.end(), later.begin(), later.end());
  Case made = composer.Begin(number, composer.Hide(number, composer.Room(), Spread(sentences)));
  if (made.trial.context.empty()) return made;
  for (int i = 0; i < kPairs; ++i)
    AskAbout(answers[i], questions[i], "facts-joined", -1, composer, &made);
  return made;
}

// Three appointments, each moved to another day later in the text.
Case Corrected(const Composer& composer, int number) {
  constexpr int kFacts = 3;
  constexpr std::string_view kDays[] = {"Monday", "Tuesday",  "Wednesday", "Thursday",
                                        "Friday", "Saturday", "Sunday"};
  std::mt19937_64 rng = composer.Rng(number);
  Draw nouns(Nouns(), &rng);
  std::vector<std::string> sentences, later;
  std::vector<std::string> subjects, before, after;
  for (int i = 0; i < kFacts; ++i) {
    Draw days(kDays, &rng);
    subjects.push_back(nouns.Next());
    before.push_back(days.Next());
    after.push_back(days.Next());
    sentences.push_back(fmt::format("The {} festival is to open on {}.", subjects[i], before[i]));
    later.push_back(fmt::format("Correction: the {} festival will not open on {} but on {}.",
                                subjects[i], before[i], after[i]));
  }
  sentences.insert(sentences.end(), later.begin(), later.end());
  Case made = composer.Begin(number, composer.Hide(number, composer.Room(), Spread(sentences)));
  if (made.trial.context.empty()) return made;
  for (int i = 0; i < kFacts; ++i) {
    const std::string question =
        fmt::format("On which day does the {} festival open? Name that day only.", subjects[i]);
    composer.Add(composer.Ask(question, "", after[i], kAnswerTokens),
                 {.task = "facts-corrected", .answers = {after[i]}, .wrong = {before[i]}}, &made);
  }
  return made;
}

}  // namespace

std::vector<Fact> DrawFacts(std::mt19937_64* rng) {
  Draw adjectives(Adjectives(), rng), nouns(Nouns(), rng);
  const auto subject = [&] {
    std::string words = adjectives.Next() + " " + nouns.Next();
    for (char* letter : {words.data(), words.data() + words.find(' ') + 1})
      *letter = static_cast<char>(*letter - 'a' + 'A');
    return words;
  };
  const auto one = [&](const auto& kinds, const std::string& answer) {
    return Fill(kinds[(*rng)() % std::size(kinds)], subject(), answer);
  };
  std::vector<Fact> facts = {one(kNames, DrawPerson(rng)),
                             one(kPlaces, Draw(Towns(), rng).Next()),
                             one(kColours, Draw(Colours(), rng).Next()),
                             one(kTimes, DrawTime(rng)),
                             one(kObjects, Draw(Objects(), rng).Next()),
                             one(kIdentifiers, DrawIdentifier(rng)),
                             one(kNumbers, std::to_string(100 + (*rng)() % 900))};
  facts[4].answer = WithoutArticle(facts[4].answer);
  for (size_t i = facts.size(); i > 1; --i) std::swap(facts[i - 1], facts[(*rng)() % i]);
  return facts;
}

std::vector<Task> FactTasks() {
  return {{"facts", "seven kinds of facts in a text, each asked for in two wordings", Facts},
          {"facts-joined", "answers that follow from two facts", Joined},
          {"facts-corrected", "facts that the text corrects later", Corrected}};
}

}  // namespace hydrant::eval
