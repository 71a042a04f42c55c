// Stop strings, and the conversion of a token stream to text for the client.
#include <random>
#include <string>

#include "gtest/gtest.h"
#include "scheduler/output_processor.h"
#include "scheduler/stop_matcher.h"
#include "tests/scheduler/fake_tokenizer.h"

namespace hydrant {
namespace {

TEST(StopMatcherTest, HoldsBackOnlyPossibleStops) {
  StopMatcher matcher({"STOP"}, false);
  EXPECT_EQ(matcher.Push("a ST"), "a ");
  EXPECT_EQ(matcher.Push("A"), "STA");
  EXPECT_EQ(matcher.Push("SSTO"), "S");
  EXPECT_EQ(matcher.Push("P tail"), "");
  ASSERT_TRUE(matcher.matched());
  EXPECT_EQ(matcher.matched_stop(), "STOP");
  EXPECT_EQ(matcher.Push("more"), "");
  EXPECT_EQ(matcher.Flush(), "");
}

TEST(StopMatcherTest, FlushGivesTheHeldText) {
  StopMatcher matcher({"abcd"}, false);
  EXPECT_EQ(matcher.Push("xabc"), "x");
  EXPECT_EQ(matcher.Flush(), "abc");
  StopMatcher none({}, false);
  EXPECT_EQ(none.Push("abc"), "abc");
}

TEST(StopMatcherTest, IncludesTheStopOnRequest) {
  StopMatcher matcher({"bc"}, true);
  EXPECT_EQ(matcher.Push("ab"), "a");
  EXPECT_EQ(matcher.Push("cd"), "bc");
}

TEST(StopMatcherTest, TheFirstToEndWinsThenTheLongest) {
  StopMatcher first({"bcde", "cd"}, false);
  EXPECT_EQ(first.Push("abcdef"), "ab");
  EXPECT_EQ(first.matched_stop(), "cd");
  for (const auto& stops : {std::vector<std::string>{"cd", "bcd"}, {"bcd", "cd"}}) {
    StopMatcher longest(stops, false);
    EXPECT_EQ(longest.Push("abcd"), "a");
    EXPECT_EQ(longest.matched_stop(), "bcd");
    StopMatcher included(stops, true);
    EXPECT_EQ(included.Push("abcdef"), "abcd");
  }
}

TEST(StopMatcherTest, EmitsWholeCharacters) {
  StopMatcher matcher({"\xC3\xA9!"}, false);  // "é!"
  EXPECT_EQ(matcher.Push("\xC3\xA8"),
            "\xC3\xA8");  // è shares é's first byte, but no character begins a stop with it
  EXPECT_EQ(matcher.Push("x\xC3\xA9"), "x");
  EXPECT_EQ(matcher.Push("\xC3\xA9"), "\xC3\xA9");
  EXPECT_EQ(matcher.Push("!"), "");
  EXPECT_TRUE(matcher.matched());
}

// Compared with a plain search of the whole text, split in random pieces. A small alphabet makes
// overlaps common.
TEST(StopMatcherTest, AgreesWithPlainSearchHoweverTheTextIsCut) {
  constexpr int kSeed = 20240611;
  SCOPED_TRACE(testing::Message() << "seed " << kSeed);
  std::mt19937 random(kSeed);
  auto word = [&](int length) {
    std::string text;
    for (int i = 0; i < length; ++i) text += static_cast<char>('a' + random() % 2);
    return text;
  };
  int matches = 0;
  for (int round = 0; round < 5000; ++round) {
    std::vector<std::string> stops;
    for (int i = 1 + random() % 3; i > 0; --i) stops.push_back(word(1 + random() % 7));
    const std::string text = word(random() % 30);
    const bool include = random() % 2 == 0;

    size_t best_end = std::string::npos, best_begin = 0;
    for (const std::string& stop : stops) {
      const size_t at = text.find(stop);
      if (at == std::string::npos) continue;
      const size_t end = at + stop.size();
      if (end < best_end || (end == best_end && at < best_begin)) best_end = end, best_begin = at;
    }
    std::string expected = text;
    if (best_end != std::string::npos) expected.resize(include ? best_end : best_begin);

    StopMatcher matcher(stops, include);
    std::string got;
    for (size_t at = 0; at < text.size();) {
      const size_t length = std::min<size_t>(1 + random() % 5, text.size() - at);
      got += matcher.Push(text.substr(at, length));
      at += length;
    }
    got += matcher.Flush();
    ASSERT_EQ(got, expected) << text;
    ASSERT_EQ(matcher.matched(), best_end != std::string::npos);
    matches += matcher.matched();
  }
  EXPECT_GT(matches, 500);
  EXPECT_LT(matches, 4900);
}

TEST(OutputProcessorTest, AnOpenCharacterIsHeldAndBecomesAReplacementAtTheEnd) {
  FakeTokenizer tokenizer;
  OutputProcessor output(&tokenizer, {}, true);
  EXPECT_EQ(output.Push(0xC3).text, "");
  EXPECT_EQ(output.Push(0xA9).text, "\xC3\xA9");
  EXPECT_EQ(output.Push(0xC3).text, "");
  EXPECT_EQ(output.Finish(), "\xEF\xBF\xBD");
}

TEST(OutputProcessorTest, AStopStringMaySpanTokensAndHalfCharacters) {
  FakeTokenizer tokenizer;
  OutputProcessor output(&tokenizer, {.stop = {"a\xC3\xA9z"}}, true);
  std::string text;
  bool ended = false;
  for (const TokenId id : {0x78, 0x61, 0xC3, 0xA9, 0x7A}) {
    EXPECT_FALSE(ended);
    const OutputProcessor::Output out = output.Push(id);
    text += out.text;
    ended = out.ends;
    EXPECT_TRUE(out.deliver_id);
  }
  EXPECT_TRUE(ended);
  EXPECT_EQ(text, "x");
  EXPECT_EQ(output.matched_stop(), "a\xC3\xA9z");
  EXPECT_EQ(output.matched_token_id(), std::nullopt);
}

TEST(OutputProcessorTest, NothingEndsTheTextBeforeMinTokens) {
  FakeTokenizer tokenizer;
  OutputProcessor output(&tokenizer, {.min_tokens = 4, .stop = {"b"}, .stop_token_ids = {300}},
                         true);
  EXPECT_FALSE(output.Push('b').ends);
  EXPECT_FALSE(output.Push(FakeTokenizer::kEog).ends);
  EXPECT_FALSE(output.Push(300).ends);
  const OutputProcessor::Output last = output.Push('b');
  EXPECT_TRUE(last.ends);
  EXPECT_EQ(last.text, "");
}

TEST(OutputProcessorTest, TheEndingTokenFlushesHeldText) {
  FakeTokenizer tokenizer;
  OutputProcessor output(&tokenizer, {.stop = {"xyz"}}, true);
  EXPECT_EQ(output.Push('x').text, "");
  const OutputProcessor::Output end = output.Push(FakeTokenizer::kEog);
  EXPECT_TRUE(end.ends);
  EXPECT_FALSE(end.deliver_id);
  EXPECT_EQ(end.text, "x");
  EXPECT_EQ(output.matched_token_id(), FakeTokenizer::kEog);
}

}  // namespace
}  // namespace hydrant
