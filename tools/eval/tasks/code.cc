#include "tools/eval/tasks/code.h"

#include <fmt/format.h>

#include <string>
#include <string_view>
#include <utility>

namespace hydrant::eval {
namespace {

// A function of a file, with {0} for a part of its name. `wrong` stands in place of `right` where
// the function is to be mended, and the test then fails.
struct Function {
  const char* name;
  const char* text;
  const char* right;
  const char* wrong;
  const char* test;
};

constexpr Function kFunctions[] = {
    {"mean_of_{0}",
     "(values):\n    \"\"\"The mean of the values.\"\"\"\n    return sum(values) / @\n",
     "len(values)", "(len(values) + 1)", "([2, 4]) == 3"},
    {"largest_{0}",
     "(values):\n    \"\"\"The largest of the values.\"\"\"\n    best = values[0]\n    for value "
     "in "
     "values:\n        if @:\n            best = value\n    return best\n",
     "value > best", "value < best", "([3, 9, 4]) == 9"},
    {"count_{0}",
     "(items, wanted):\n    \"\"\"How often `wanted` is among the items.\"\"\"\n    count = 0\n    "
     "for "
     "item in items:\n        if @:\n            count += 1\n    return count\n",
     "item == wanted", "item != wanted", "([1, 2, 1], 1) == 2"},
    {"reverse_{0}",
     "(text):\n    \"\"\"The text from its end to its beginning.\"\"\"\n    return @\n",
     "text[::-1]", "text[1::]", "(\"abc\") == \"cba\""},
    {"celsius_of_{0}",
     "(fahrenheit):\n    \"\"\"Degrees Celsius for degrees Fahrenheit.\"\"\"\n    return @\n",
     "(fahrenheit - 32) * 5 / 9", "(fahrenheit + 32) * 5 / 9", "(212) == 100"},
    {"area_of_{0}", "(width, height):\n    \"\"\"The area of a rectangle.\"\"\"\n    return @\n",
     "width * height", "width + height", "(3, 4) == 12"},
    {"factorial_{0}",
     "(n):\n    \"\"\"The product of the numbers from 1 to n.\"\"\"\n    if n <= 1:\n        "
     "return 1\n   "
     " return @\n",
     "n * factorial_{0}(n - 1)", "n + factorial_{0}(n - 1)", "(4) == 24"},
    {"is_even_{0}", "(n):\n    \"\"\"Whether n is even.\"\"\"\n    return @\n", "n % 2 == 0",
     "n % 2 == 1", "(4) == True"},
    {"join_{0}",
     "(first, second):\n    \"\"\"Both texts with a comma between them.\"\"\"\n    return @\n",
     "first + \",\" + second", "first + second + \",\"", "(\"a\", \"b\") == \"a,b\""},
    {"distance_{0}",
     "(a, b):\n    \"\"\"How far two numbers are apart, never negative.\"\"\"\n    return @\n",
     "abs(a - b)", "abs(a + b)", "(2, 7) == 5"},
    {"last_{0}", "(items):\n    \"\"\"The last of the items.\"\"\"\n    return @\n", "items[-1]",
     "items[0]", "([1, 2, 3]) == 3"},
    {"clamp_{0}",
     "(value, low, high):\n    \"\"\"The value, moved into the range from low to high.\"\"\"\n    "
     "return @\n",
     "max(low, min(value, high))", "min(low, max(value, high))", "(9, 0, 5) == 5"},
    {"initials_{0}",
     "(name):\n    \"\"\"The first letters of the words of a name.\"\"\"\n    return \"\".join(@ "
     "for "
     "word in name.split())\n",
     "word[0]", "word[1]", "(\"Ada Baker\") == \"AB\""},
    {"squares_{0}",
     "(numbers):\n    \"\"\"The square of each number.\"\"\"\n    return [@ for n in "
     "numbers]\n",
     "n * n", "n + n", "([3]) == [9]"},
    {"hours_of_{0}", "(minutes):\n    \"\"\"Whole hours in so many minutes.\"\"\"\n    return @\n",
     "minutes // 60", "minutes % 60", "(130) == 2"},
    {"shorter_{0}",
     "(a, b):\n    \"\"\"The shorter of two texts.\"\"\"\n    return a if @ else b\n",
     "len(a) < len(b)", "len(a) > len(b)", "(\"xy\", \"abc\") == \"xy\""}};
constexpr std::string_view kTopics[] = {
    "prices", "readings", "orders",  "scores",  "names",  "samples", "tickets", "routes",
    "loans",  "visits",   "weights", "heights", "labels", "tokens",  "seats",   "parcels",
    "shifts", "meals",    "rooms",   "clips",   "votes",  "bids",    "goals",   "rents"};

std::string Replaced(std::string text, const std::string& from, const std::string& to) {
  for (size_t at = text.find(from); at != std::string::npos; at = text.find(from, at + to.size()))
    text.replace(at, from.size(), to);
  return text;
}

struct Written {
  std::string name;
  std::string text;
  std::string right, wrong;
  std::string test;
};

Written Write(const Function& function, std::string_view topic, bool broken) {
  const std::string of(topic);
  Written written;
  written.name = Replaced(function.name, "{0}", of);
  written.right = Replaced(function.right, "{0}", of);
  written.wrong = Replaced(function.wrong, "{0}", of);
  written.text = "def " + written.name +
                 Replaced(function.text, "@", broken ? written.wrong : written.right) + "\n\n";
  written.test = "assert " + written.name + function.test;
  return written;
}

struct CodeFile {
  Ids ids;
  Written broken;
};

// Functions until the room is filled, one of which is broken: in a later case a later one.
CodeFile MakeFile(const Composer& composer, int number) {
  constexpr size_t kDifferent = std::size(kFunctions) * std::size(kTopics);
  std::mt19937_64 rng = composer.Rng(number);
  const size_t first = rng() % kDifferent;
  std::vector<Written> all;
  std::vector<Ids> texts;
  size_t tokens = 0;
  for (size_t i = 0; i < kDifferent; ++i) {
    const size_t at = (first + i) % kDifferent;
    // Neighbours differ in both.
    const Function& function = kFunctions[at % std::size(kFunctions)];
    const size_t topic = (at + at / std::size(kFunctions)) % std::size(kTopics);
    all.push_back(Write(function, kTopics[topic], false));
    texts.push_back(composer.Encode(all.back().text));
    if (tokens + texts.back().size() > static_cast<size_t>(composer.Room())) break;
    tokens += texts.back().size();
  }
  const size_t whole = std::max<size_t>(1, all.size() - 1);  // the last one has no room
  const size_t broken = std::min<size_t>(
      whole - 1, static_cast<size_t>((number + 0.5) / composer.options().cases * whole));
  const size_t at = (first + broken) % kDifferent;
  CodeFile file;
  file.broken = Write(kFunctions[at % std::size(kFunctions)],
                      kTopics[(at + at / std::size(kFunctions)) % std::size(kTopics)], true);
  texts[broken] = composer.Encode(file.broken.text);
  for (size_t i = 0; i < whole; ++i)
    file.ids.insert(file.ids.end(), texts[i].begin(), texts[i].end());
  return file;
}

Case Mend(const Composer& composer, int number) {
  constexpr int kTokens = 110;
  const CodeFile file = MakeFile(composer, number);
  Case made = composer.Begin(number, file.ids);
  Exchange exchange = composer.Ask(
      fmt::format("The test `{}` fails: there is a mistake in `{}`. Write that function again, "
                  "corrected, and nothing else.",
                  file.broken.test, file.broken.name),
      "", file.broken.right, kTokens);
  exchange.stop = "\n\n\n";
  composer.Add(std::move(exchange),
               {.task = "code-mend", .answers = {file.broken.right}, .wrong = {file.broken.wrong}},
               &made);
  return made;
}

Case Explain(const Composer& composer, int number) {
  constexpr int kTokens = 48;
  const CodeFile file = MakeFile(composer, number);
  Case made = composer.Begin(number, file.ids);
  Exchange exchange = composer.Ask(
      fmt::format("Explain in two sentences how the function `{}` works.", file.broken.name), "",
      "", 0);
  exchange.follow = kTokens;
  composer.Add(std::move(exchange), {.task = "code-explain", .judge = Judge::kForeseen}, &made);
  return made;
}

}  // namespace

std::vector<Task> CodeTasks() {
  return {
      {"code-mend", "a function of a file is to be corrected; a test that fails is shown", Mend},
      {"code-explain", "how well the full cache's explanation of a function is foreseen", Explain}};
}

}  // namespace hydrant::eval
