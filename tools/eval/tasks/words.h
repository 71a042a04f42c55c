// Words that the tasks draw from. English, a token or two each in most vocabularies.
#ifndef HYDRANT_TOOLS_EVAL_TASKS_WORDS_H_
#define HYDRANT_TOOLS_EVAL_TASKS_WORDS_H_

#include <random>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace hydrant::eval {

std::span<const std::string_view> Adjectives();
std::span<const std::string_view> Nouns();
std::span<const std::string_view> FirstNames();
std::span<const std::string_view> LastNames();
std::span<const std::string_view> Towns();
std::span<const std::string_view> Colours();
std::span<const std::string_view> Objects();
std::span<const std::string_view> Trades();

// Draws different words, without repetition as long as there are any left.
class Draw {
 public:
  Draw(std::span<const std::string_view> words, std::mt19937_64* rng);
  std::string Next();

 private:
  std::vector<std::string_view> words_;
  size_t next_ = 0;
};

// Five digits; and 32 hexadecimal ones in the form of a UUID.
std::string DrawNumber(std::mt19937_64* rng);
std::string DrawUuid(std::mt19937_64* rng);

}  // namespace hydrant::eval

#endif  // HYDRANT_TOOLS_EVAL_TASKS_WORDS_H_
