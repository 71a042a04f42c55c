#include "kernels/cuda/matmul_choices.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "engine/run/step/graph_shape.h"
#include "tests/store_folder.h"
#include "tests/test_files.h"

namespace hydrant::cuda {
namespace {

const ChoiceOwner kOwner = {"NVIDIA H200", 130100, 13000};

ProductShape Shape(int rows) {
  return {.rows = rows, .outputs = 28672, .inner = 4096, .bf16 = true};
}
AlgorithmWords Words(uint64_t seed) {
  std::mt19937_64 random(seed);
  AlgorithmWords words;
  for (uint64_t& word : words) word = random() >> random() % 64;
  return words;
}

class ChoiceFileTest : public testing::Test {
 protected:
  std::string Text() const { return ReadTextFile(path_); }
  void Write(const std::string& text) const { std::ofstream(path_, std::ios::binary) << text; }

  const StoreFolder folder_;
  const std::string path_ = folder_.path() + "/new/folder/choices.tsv";
};

TEST(RowsBucketTest, HasThePaddedSizesOfDecodeSteps) {
  std::set<int> buckets;
  for (int rows = 1; rows <= 5000; ++rows) {
    const int bucket = RowsBucket(rows);
    EXPECT_EQ(bucket, RoundedUp({.rows = rows}, 1 << 20).rows) << rows;
    EXPECT_EQ(RowsBucket(bucket), bucket) << rows;
    EXPECT_GE(bucket, rows);
    EXPECT_LE(bucket, rows * 1.25) << rows;
    buckets.insert(bucket);
  }
  EXPECT_LE(buckets.size(), 50u);
}

TEST(FastestOfTest, TakesTheLeastMedianAndElseTheLibrarysFirst) {
  using Times = std::vector<std::vector<float>>;
  EXPECT_EQ(FastestOf(Times{}), -1);
  EXPECT_EQ(FastestOf(Times{{}, {}}), -1);
  EXPECT_EQ(FastestOf(Times{{5, 5, 5}}), 0);
  EXPECT_EQ(FastestOf(Times{{}, {5, 5, 5}, {4, 4, 4}}), 2);
  EXPECT_EQ(FastestOf(Times{{5, 5, 5}, {1, 9, 9}, {4, 100, 4}, {4.5, 4.5, 4.5}}), 2) << "outliers";
  EXPECT_EQ(FastestOf(Times{{100, 100, 100}, {99, 99, 99}}), 0) << "too close";
  EXPECT_EQ(FastestOf(Times{{100, 100, 100}, {97, 97, 97}, {97, 97, 97}}), 1) << "a tie";
  EXPECT_EQ(FastestOf(Times{{}, {100, 100, 100}, {99, 99, 99}}), 1) << "the first that ran";
}

TEST_F(ChoiceFileTest, LaterProcessesFindStoredChoices) {
  {
    ChoiceFile file(path_, kOwner);
    EXPECT_FALSE(file.damaged()) << "there is none";
    EXPECT_EQ(file.Find(Shape(64)), nullptr);
    for (int rows : {1, 64, 2048}) EXPECT_TRUE(file.Keep(Shape(rows), Words(rows)));
    ASSERT_NE(file.Find(Shape(64)), nullptr);
    EXPECT_EQ(*file.Find(Shape(64)), Words(64));
  }
  const ChoiceFile file(path_, kOwner);
  EXPECT_EQ(file.found(), 3u);
  for (int rows : {1, 64, 2048}) {
    ASSERT_NE(file.Find(Shape(rows)), nullptr) << rows;
    EXPECT_EQ(*file.Find(Shape(rows)), Words(rows)) << rows;
    ProductShape other = Shape(rows);
    other.accumulate = true;
    EXPECT_EQ(file.Find(other), nullptr);
    other = Shape(rows);
    other.bf16_result = true;
    EXPECT_EQ(file.Find(other), nullptr);
  }
}

TEST_F(ChoiceFileTest, EachOwnerHasItsOwnAndLeavesTheOthersBe) {
  const ChoiceOwner others[] = {{"NVIDIA H100", 130100, 13000},
                                {"NVIDIA H200", 130101, 13000},
                                {"NVIDIA H200", 130100, 13010}};
  EXPECT_TRUE(ChoiceFile(path_, kOwner).Keep(Shape(8), Words(1)));
  for (const ChoiceOwner& other : others) {
    ChoiceFile file(path_, other);
    EXPECT_EQ(file.found(), 0u);
    EXPECT_TRUE(file.Keep(Shape(8), Words(2)));
  }
  EXPECT_EQ(*ChoiceFile(path_, kOwner).Find(Shape(8)), Words(1));
  for (const ChoiceOwner& other : others)
    EXPECT_EQ(*ChoiceFile(path_, other).Find(Shape(8)), Words(2));
}

// Two processes: neither loses a choice in the file, nor changes one that it has used.
TEST_F(ChoiceFileTest, ProcessesShareItAndKeepTheirChoices) {
  ChoiceFile first(path_, kOwner), second(path_, kOwner);
  EXPECT_TRUE(first.Keep(Shape(1), Words(1)));
  EXPECT_TRUE(second.Keep(Shape(2), Words(2)));
  EXPECT_TRUE(second.Keep(Shape(1), Words(3)));
  EXPECT_TRUE(first.Keep(Shape(4), Words(4)));
  EXPECT_EQ(*first.Find(Shape(1)), Words(1));
  EXPECT_EQ(*second.Find(Shape(1)), Words(3));
  EXPECT_EQ(first.Find(Shape(2)), nullptr);
  EXPECT_EQ(ChoiceFile(path_, kOwner).found(), 3u);
}

TEST_F(ChoiceFileTest, ADamagedOneIsIgnoredAndWrittenAnew) {
  {
    ChoiceFile file(path_, kOwner);
    for (int rows = 1; rows <= 8; ++rows) EXPECT_TRUE(file.Keep(Shape(rows), Words(rows)));
  }
  const std::string good = Text();
  std::mt19937_64 random(1);
  int unnoticed = 0;
  for (int round = 0; round < 2000; ++round) {
    std::string bad = good;
    switch (round % 4) {
      case 0:
        bad[random() % bad.size()] ^= static_cast<char>(1 << random() % 8);
        break;
      case 1:
        bad.resize(random() % bad.size());
        break;
      case 2:
        bad.erase(random() % bad.size(), 1);
        break;
      default:
        bad.insert(random() % bad.size(), 1, static_cast<char>(random()));
    }
    // The removal of whole lines cannot be detected as damage.
    const auto parsed = ParseChoices(bad);
    if (!parsed.has_value()) continue;
    for (const auto& [key, words] : *parsed) EXPECT_EQ(words, Words(key.second.rows)) << round;
    ++unnoticed;
  }
  EXPECT_LT(unnoticed, 20);
  Write(good.substr(0, good.size() / 2));
  ChoiceFile file(path_, kOwner);
  EXPECT_TRUE(file.damaged());
  EXPECT_EQ(file.Find(Shape(1)), nullptr);
  EXPECT_TRUE(file.Keep(Shape(1), Words(1)));
  const ChoiceFile again(path_, kOwner);
  EXPECT_FALSE(again.damaged());
  EXPECT_EQ(again.found(), 1u);
}

TEST_F(ChoiceFileTest, WithoutAPlaceItHoldsForTheProcess) {
  for (const std::string& path : {std::string("/proc/no/such/choices.tsv"), std::string()}) {
    ChoiceFile file(path, kOwner);
    EXPECT_FALSE(file.damaged());
    EXPECT_EQ(file.Keep(Shape(1), Words(1)), path.empty());
    EXPECT_EQ(*file.Find(Shape(1)), Words(1));
  }
}

TEST(ChoiceSettingsTest, OfTheEnvironment) {
  using Variables = std::map<std::string, std::string>;
  const auto settings = [](const Variables& variables) {
    return ChoiceSettingsOf([&](const char* name) {
      const auto found = variables.find(name);
      return found == variables.end() ? nullptr : found->second.c_str();
    });
  };
  EXPECT_FALSE(settings({{"HYDRANT_MATMUL_CHOICES", "off"}, {"HOME", "/h"}}).timed);
  EXPECT_TRUE(settings({}).timed);
  EXPECT_EQ(settings({}).path, "");
  EXPECT_EQ(settings({{"HOME", "/"}}).path, "");
  EXPECT_EQ(settings({{"HOME", "/h"}}).path, "/h/.cache/hydrant/matmul-choices.tsv");
  EXPECT_EQ(settings({{"HOME", "/h"}, {"XDG_CACHE_HOME", "/c"}}).path,
            "/c/hydrant/matmul-choices.tsv");
  EXPECT_EQ(settings({{"HYDRANT_MATMUL_CHOICES", "/x/y"}, {"HOME", "/h"}}).path, "/x/y");
}

}  // namespace
}  // namespace hydrant::cuda
