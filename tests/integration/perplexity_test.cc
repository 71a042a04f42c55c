// SmolLM2 in bf16 on the first halves of two windows of 2,048 tokens of wiki.test.raw, compared with
// transformers' fp32 perplexity (tests/goldens/smollm2.py perplexity). All windows decode as one
// batch, token by token, so the test measures the decode path over pages.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "engine/model/gguf.h"
#include "engine/run/engine.h"
#include "engine/run/engine_probe.h"
#include "engine/text/tokenizer/tokenizer.h"
#include "tests/test_files.h"
#include "tools/eval/engine_driver.h"

namespace hydrant {
namespace {

using eval::EngineDriver;

constexpr int kWindow = 2048;

// How much of the text is read.
struct Part {
  int windows = 2;
  int tokens = kWindow / 2;  // of each window
};

// HYDRANT_PERPLEXITY_WINDOWS=16 reads all windows whole, in minutes.
Part PartOf(const char* windows) {
  if (windows == nullptr) return {};
  return {.windows = std::clamp(std::atoi(windows), 1, 16), .tokens = kWindow};
}

double NegativeLogLikelihood(const float* logits, int vocab, TokenId token) {
  const float top = *std::max_element(logits, logits + vocab);
  double sum = 0;
  for (int i = 0; i < vocab; ++i) sum += std::exp(logits[i] - top);
  return std::log(sum) + top - logits[token];
}

TEST(Perplexity, BFloat16IsWithinHalfAPercentOfTransformers) {
  const auto model = CachedModel(kSmolLm2);
  const auto text_file = DataFile("text/wiki.test.raw");
  if (!model) GTEST_SKIP() << "SmolLM2 is not here: run scripts/fetch-model";
  if (!text_file) GTEST_SKIP() << "wiki.test.raw is not here: set HYDRANT_DATA_DIR";
  std::ifstream text_stream(*text_file);
  const std::string text((std::istreambuf_iterator<char>(text_stream)), {});
  const auto [windows, length] = PartOf(std::getenv("HYDRANT_PERPLEXITY_WINDOWS"));
  std::ifstream golden_stream("tests/data/engine/smollm2_perplexity.json");
  const nlohmann::json golden = nlohmann::json::parse(golden_stream);

  auto source = OpenModel(*model, LoadFormat::kAuto);
  ASSERT_TRUE(source.ok()) << source.status();
  const auto tokenizer = TokenizerFromGguf(*(*source)->gguf());
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  const auto ids = (*tokenizer)->Encode(text.substr(0, 400000), {.add_special_tokens = false});
  ASSERT_TRUE(ids.ok()) << ids.status();
  ASSERT_GT(ids->size(), static_cast<size_t>(windows) * kWindow);

  EngineOptions options;
  options.num_threads = 2;
  options.dtype = WeightDType::kBFloat16;
  options.max_num_seqs = windows;
  options.max_model_len = length;
  options.num_blocks_override = windows * (length / 16) * 30 * 3;
  auto engine =
      Engine::Create(std::shared_ptr<const ModelSource>(*std::move(source)), options, nullptr);
  ASSERT_TRUE(engine.ok()) << engine.status();
  const int vocab = (*engine)->config().vocab_size;

  EngineDriver driver(engine->get(), 1);
  for (int w = 0; w < windows; ++w) driver.Add({}, *PlanCache({}, {0}), length);
  std::vector<double> nll(windows, 0.0);
  for (int t = 0; t + 1 < length; ++t) {
    for (int w = 0; w < windows; ++w) driver.DecodeToken(w, (*ids)[w * kWindow + t], t);
    driver.Step();
    const std::vector<float> logits = EngineProbe(**engine).ReadLogits();
    for (int w = 0; w < windows; ++w) {
      nll[w] += NegativeLogLikelihood(&logits[static_cast<size_t>(w) * vocab], vocab,
                                      (*ids)[w * kWindow + t + 1]);
    }
  }
  double total = 0, expected_total = 0;
  for (int w = 0; w < windows; ++w) {
    total += nll[w];
    const nlohmann::json& window = golden["windows"][w];
    const double second = length < kWindow ? double{window["nll_second_half"]} : 0.0;
    const double expected = double{window["nll_all"]} - second;
    expected_total += expected;
    EXPECT_NEAR(nll[w] / expected, 1.0, 0.01) << "window " << w;  // exceeded by one wrong token
  }
  const int tokens = windows * (length - 1);
  const double perplexity = std::exp(total / tokens);
  const double expected = std::exp(expected_total / tokens);
  std::printf("perplexity %.4f, transformers fp32 %.4f: %+.3f %%\n", perplexity, expected,
              100 * (perplexity / expected - 1));
  EXPECT_NEAR(perplexity / expected, 1.0, 0.005);
}

}  // namespace
}  // namespace hydrant
