#include "scheduler/request_check.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "engine/cache/cache_spec_parser.h"
#include "engine/cache/kv_cache_manager.h"
#include "gtest/gtest.h"
#include "tests/scheduler/fake_tokenizer.h"
#include "tests/scheduler/scheduler_harness.h"

namespace hydrant {
namespace {

struct BadRequest {
  const char* message;
  std::function<void(Request&)> spoil;
};

TEST(RequestCheckTest, BadValuesAreNamedWithTheirRange) {
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  const BadRequest cases[] = {
      {"sampling.temperature: -1 is outside [0, 100]",
       [](Request& r) { r.sampling.temperature = -1; }},
      {"sampling.temperature: nan is outside [0, 100]",
       [](Request& r) { r.sampling.temperature = kNan; }},
      {"sampling.temperature: inf is outside [0, 100]",
       [](Request& r) { r.sampling.temperature = INFINITY; }},
      {"sampling.top_p: 0 is outside (0, 1]", [](Request& r) { r.sampling.top_p = 0; }},
      {"sampling.top_p: nan is outside (0, 1]", [](Request& r) { r.sampling.top_p = kNan; }},
      {"sampling.min_p: 1.5 is outside [0, 1]", [](Request& r) { r.sampling.min_p = 1.5; }},
      {"sampling.repetition_penalty: 11 is outside [0.001, 10]",
       [](Request& r) { r.sampling.repetition_penalty = 11; }},
      {"sampling.presence_penalty: -2.5 is outside [-2, 2]",
       [](Request& r) { r.sampling.presence_penalty = -2.5; }},
      {"sampling.frequency_penalty: nan is outside [-2, 2]",
       [](Request& r) { r.sampling.frequency_penalty = kNan; }},
      {"sampling.top_k: -2 is outside [-1, 2147483647] (0 or -1: all)",
       [](Request& r) { r.sampling.top_k = -2; }},
      {"stopping.max_tokens: 0 is outside [1, 4294967295]",
       [](Request& r) { r.stopping.max_tokens = 0; }},
      {"stopping.min_tokens: -1 is outside [0, 10]",
       [](Request& r) { r.stopping.min_tokens = -1; }},
      {"stopping.min_tokens: 11 is outside [0, 10]",
       [](Request& r) { r.stopping.min_tokens = 11; }},
      {"stopping.stop[1]: length 0 is outside [1, 1024] bytes",
       [](Request& r) {
         r.stopping.stop = {"a", ""};
       }},
      {"stopping.stop: 65 strings exceed the limit of 64",
       [](Request& r) { r.stopping.stop.assign(65, "a"); }},
      {"stopping.stop_token_ids[0]: 1000 is outside [0, 1000)",
       [](Request& r) { r.stopping.stop_token_ids = {1000}; }},
      {"prompt: 0 tokens, at least 1 is needed", [](Request& r) { r.prompt.clear(); }},
      {"prompt[2]: 4294967295 is outside [0, 1000)", [](Request& r) { r.prompt[2] = kNoToken; }},
      {"prompt: 128 tokens exceed max_model_len 128 - 1",
       [](Request& r) { r.prompt.assign(128, 1); }},
      {"cache.question_tokens: -1 is outside [0, 4], the prompt's tokens but one",
       [](Request& r) { r.question_tokens = -1; }},
      {"cache.question_tokens: 5 is outside [0, 4], the prompt's tokens but one",
       [](Request& r) { r.question_tokens = 5; }},
      {"cache.cache_salt: 257 bytes exceed the limit of 256",
       [](Request& r) { r.cache_salt.assign(257, 'x'); }},
      {"resume_token_ids[0]: 5000 is outside [0, 1000)",
       [](Request& r) { r.resume_token_ids = {5000}; }},
      {"resume_token_ids: 10 tokens leave nothing of the 10 that the request may generate",
       [](Request& r) { r.resume_token_ids.assign(10, 5); }},
      {"resume_token_ids[1]: the text had already ended here",
       [](Request& r) {
         r.resume_token_ids = {5, FakeTokenizer::kEog};
       }},
  };
  const FakeTokenizer tokenizer;
  for (const BadRequest& bad : cases) {
    Request request = MakeRequest(5, 10);
    bad.spoil(request);
    const auto checked = CheckRequest(request, SmallLimits(), tokenizer);
    ASSERT_TRUE(std::holds_alternative<Failed>(checked)) << bad.message;
    EXPECT_EQ(std::string(std::get<Failed>(checked).status.message()), bad.message);
    EXPECT_EQ(std::get<Failed>(checked).status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(std::get<Failed>(checked).reason, "INVALID");
  }
}

TEST(RequestCheckTest, TheEdgesOfTheRangesAreGood) {
  const FakeTokenizer tokenizer;
  Request request = MakeRequest(127, 10);
  request.sampling = {.temperature = 100, .top_p = 1, .min_p = 1, .top_k = -1};
  request.stopping.min_tokens = 10;
  const auto checked = CheckRequest(request, SmallLimits(), tokenizer);
  ASSERT_TRUE(std::holds_alternative<CheckedRequest>(checked));
  EXPECT_EQ(std::get<CheckedRequest>(checked).max_total_tokens, 128);
}

// max_model_len limits the prompt and the entries of a head, but not the output.
TEST(RequestCheckTest, RollingCachesOutrunTheContext) {
  constexpr int32_t kLimit = std::numeric_limits<int32_t>::max();
  const FakeTokenizer tokenizer;
  const auto total = [&](const Request& request) -> int64_t {
    const auto checked = CheckRequest(request, SmallLimits(), tokenizer);
    const auto* good = std::get_if<CheckedRequest>(&checked);
    return good != nullptr ? good->max_total_tokens : -1;
  };
  Request request = MakeRequest(100, 1'000'000);
  request.cache.policy = "streaming";
  request.cache.max_cache_tokens = 30;
  EXPECT_EQ(total(request), 128);
  request.cache.params = {{"rolling", "true"}};
  EXPECT_EQ(total(request), 1'000'100);
  request.stopping.max_tokens = kLimit;
  EXPECT_EQ(total(request), kLimit);
  request.resume_token_ids.assign(500, 5);
  EXPECT_EQ(total(request), kLimit);
  request.resume_token_ids.clear();
  request.stopping.max_tokens.reset();
  EXPECT_EQ(total(request), 128) << "no request asked for an endless stream";

  request.cache.max_cache_tokens = 128;
  EXPECT_EQ(total(request), 128);
  request.cache.max_cache_tokens = 129;
  const auto checked = CheckRequest(request, SmallLimits(), tokenizer);
  ASSERT_TRUE(std::holds_alternative<Failed>(checked));
  EXPECT_EQ(std::get<Failed>(checked).status.message(),
            "cache.params.rolling: a budget of 129 entries a head exceeds max_model_len 128");
  request.cache.max_cache_tokens = 30;
  request.prompt.assign(128, 1);
  EXPECT_EQ(total(request), -1);
}

// The plan covers the context only; the probe repeats the context without the question.
TEST(RequestCheckTest, AQuestionIsNotCompressed) {
  const FakeTokenizer tokenizer;
  Request request = MakeRequest(50, 10);
  request.question_tokens = 49;
  const auto edge = CheckRequest(request, SmallLimits(), tokenizer);
  ASSERT_TRUE(std::holds_alternative<CheckedRequest>(edge));
  EXPECT_EQ(std::get<CheckedRequest>(edge).plan.prompt.tokens, 1);
  EXPECT_TRUE(std::get<CheckedRequest>(edge).probe.empty());
  request.question_tokens = 20;
  request.cache.policy = "reconstruct";
  request.cache.max_cache_tokens = 10;
  const auto checked = CheckRequest(request, SmallLimits(), tokenizer);
  ASSERT_TRUE(std::holds_alternative<CheckedRequest>(checked));
  const auto& good = std::get<CheckedRequest>(checked);
  const std::vector<TokenId>& probe = good.probe;
  EXPECT_TRUE(good.prefix_keys.empty()) << "there is no room for prefixes";
  EXPECT_EQ(good.plan.prompt.tokens, 30);
  EXPECT_EQ(good.max_total_tokens, 60);
  const std::string_view instruction = "\n\nRepeat the previous context:";
  ASSERT_EQ(probe.size(), instruction.size() + 30);
  EXPECT_TRUE(std::equal(instruction.begin(), instruction.end(), probe.begin()));
  EXPECT_TRUE(
      std::equal(probe.begin() + instruction.size(), probe.end(), good.request.prompt.begin()));
  request.cache.max_cache_tokens = 30;
  EXPECT_TRUE(
      std::get<CheckedRequest>(CheckRequest(request, SmallLimits(), tokenizer)).probe.empty())
      << "nothing leaves";
}

// With a separate question `auto` prefills the context twice, if both passes fit: 49 tokens, an
// instruction of 30 and 49 tokens fill the context of 128.
TEST(RequestCheckTest, AutoReadsTwiceWhereThereIsRoom) {
  const FakeTokenizer tokenizer;
  Request request = MakeRequest(55, 10);
  request.cache.policy = "auto";
  request.cache.max_cache_tokens = 10;
  const auto probe = [&](int question) {
    request.question_tokens = question;
    const auto checked = CheckRequest(request, SmallLimits(), tokenizer);
    return std::get<CheckedRequest>(checked).probe.size();
  };
  EXPECT_EQ(probe(0), 0u);
  EXPECT_EQ(probe(6), 30u + 49u);
  EXPECT_EQ(probe(5), 0u) << "not an error: it is read once";
}

// Prompts may be token ids of a model with a tokenizer that cannot encode: it is called only for
// requests with a second pass.
TEST(RequestCheckTest, NothingIsEncodedThatIsNotRead) {
  class Silent final : public FakeTokenizer {
   public:
    absl::StatusOr<std::vector<TokenId>> Encode(std::string_view,
                                                const EncodeOptions&) const override {
      return absl::UnimplementedError("prompts are token ids");
    }
  };
  const Silent tokenizer;
  Request request = MakeRequest(50, 10);
  for (const char* policy : {"full", "h2o", "echo", "auto"}) {
    request.cache.policy = policy;
    if (request.cache.policy != "full") request.cache.max_cache_tokens = 10;
    for (const int question : {0, 5}) {
      request.question_tokens = question;
      EXPECT_TRUE(
          std::holds_alternative<CheckedRequest>(CheckRequest(request, SmallLimits(), tokenizer)))
          << policy;
    }
  }
}

// A request with an open budget gets several candidate budgets, the largest first and without
// duplicates; budgets that can never fit are left out.
TEST(RequestCheckTest, AnOpenBudgetIsAChoice) {
  const FakeTokenizer tokenizer;
  using Budgets = std::vector<int>;
  const auto budgets = [&](const Request& request, const EngineLimits& limits) {
    const auto checked = std::get<CheckedRequest>(CheckRequest(request, limits, tokenizer));
    if (checked.plan.resolve_at != ResolveAt::kAdmission) return Budgets{checked.plan.budget};
    Budgets all;
    const auto offered = [&](const CachePlan& plan) {
      if (KvCacheManager::FitsAlone(limits, plan, checked.max_total_tokens - 1))
        all.push_back(plan.budget);
      return false;
    };
    EXPECT_EQ(Resolve(checked.plan, {.fits = offered, .of_prompt = {}}).budget,
              checked.plan.budget);
    return all;
  };
  Request request = MakeRequest(100, 10);
  request.cache.policy = "auto";
  request.cache.min_cache_tokens = 15;
  EXPECT_EQ(budgets(request, SmallLimits()), (Budgets{100, 40, 20, 15}));
  EngineLimits small = SmallLimits();
  // The full cache, 109 entries a head, would need 4 * 28 blocks, and 5 for the scores of 24 each.
  // Candidates of smaller budgets, 100 entries a head, need 4 * 25, and 13 for the state of 8 each.
  small.num_blocks = 116;
  EXPECT_EQ(budgets(request, small).front(), 40);
  request.cache.min_cache_tokens = 100;
  EXPECT_EQ(budgets(request, SmallLimits()), Budgets{100});
  request.cache.min_cache_tokens = 0;
  request.cache.cache_ratio = 0.3;
  EXPECT_EQ(budgets(request, SmallLimits()), Budgets{30});
}

// 49 tokens, an instruction of 30 and 49 tokens fill the context of 128.
TEST(RequestCheckTest, AProbeHasToFitIntoTheContext) {
  const FakeTokenizer tokenizer;
  Request request = MakeRequest(49, 10);
  request.cache.policy = "reconstruct";
  request.cache.max_cache_tokens = 10;
  const auto error = [&](const EngineLimits& limits) {
    const auto checked = CheckRequest(request, limits, tokenizer);
    const auto* failed = std::get_if<Failed>(&checked);
    if (failed != nullptr) {
      EXPECT_EQ(failed->status.code(), absl::StatusCode::kInvalidArgument);
      EXPECT_EQ(failed->reason, "INVALID");
    }
    return failed == nullptr ? "" : std::string(failed->status.message());
  };
  EXPECT_EQ(error(SmallLimits()), "");
  request.prompt.push_back(1);
  EXPECT_EQ(
      error(SmallLimits()),
      "cache.cache_policy: 50 prompt tokens, an instruction of 30 and their repetition exceed "
      "the context of 128; prompts of up to 49 tokens can be scored by a probe");
  request.question_tokens = 1;
  EXPECT_EQ(error(SmallLimits()), "") << "the question is not repeated";
  request.prompt.assign(120, 1);
  request.question_tokens = 0;
  request.cache.max_cache_tokens = 120;
  EXPECT_EQ(error(SmallLimits()), "") << "nothing leaves, nothing is read twice";
  request.prompt.assign(40, 1);
  request.cache.max_cache_tokens = 10;
  EngineLimits limits = SmallLimits();
  limits.prefill_arena_tokens = 109;
  EXPECT_NE(error(limits), "") << "the arena bounds it as well";
  limits.prefill_arena_tokens = 110;
  EXPECT_EQ(error(limits), "");
}

TEST(RequestCheckTest, LearnedPositionsAndCentredKeysDoNotRoll) {
  const FakeTokenizer tokenizer;
  EngineLimits learned = SmallLimits(), centred = SmallLimits();
  learned.learned_positions = true;
  centred.centred_keys = true;
  for (const auto& [limits, why] :
       {std::pair(learned,
                  "cache.params.rolling: the model adds learned positions to its tokens, which "
                  "cannot be counted within the cache; leave it out"),
        {centred,
         "cache.params.rolling: int4 pages hold this model's keys without the part that its biases "
         "add, and cannot rotate them again; leave it out, or serve with another "
         "--kv-cache-dtype"}}) {
    Request request = MakeRequest(20, 10);
    request.cache = LocalCache(8);
    request.cache.policy = "streaming";
    EXPECT_TRUE(std::holds_alternative<CheckedRequest>(CheckRequest(request, limits, tokenizer)));
    request.cache.params = {{"rolling", "true"}};
    const auto checked = CheckRequest(request, limits, tokenizer);
    ASSERT_TRUE(std::holds_alternative<Failed>(checked));
    EXPECT_EQ(std::get<Failed>(checked).reason, "INVALID");
    EXPECT_EQ(std::get<Failed>(checked).status.message(), why);
  }
}

TEST(RequestCheckTest, ThePlansErrorIsPassedOn) {
  const FakeTokenizer tokenizer;
  Request request = MakeRequest(5, 10);
  request.cache.policy = "no such policy";
  const auto checked = CheckRequest(request, SmallLimits(), tokenizer);
  ASSERT_TRUE(std::holds_alternative<Failed>(checked));
  EXPECT_EQ(std::get<Failed>(checked).reason, "INVALID");
  EXPECT_EQ(std::get<Failed>(checked).status, PlanCache(request.cache, {5}).status());
}

// A cache that may shrink under pressure ranks its entries during decode, and reserves no pages.
TEST(RequestCheckTest, EvictableCachesAreScored) {
  const FakeTokenizer tokenizer;
  Request request = MakeRequest(20, 10);
  request.on_pressure = OnPressure::kEvict;
  const auto message = [&] {
    const auto checked = CheckRequest(request, SmallLimits(), tokenizer);
    const Failed* failed = std::get_if<Failed>(&checked);
    if (failed == nullptr) {
      EXPECT_TRUE(std::get<CheckedRequest>(checked).plan.rule.scored);
      return std::string();
    }
    return absl::StrCat(failed->reason, " ", std::string(failed->status.message()));
  };
  const std::string evict = "INVALID scheduling.on_pressure: ON_PRESSURE_EVICT ";
  EXPECT_EQ(message(), evict +
                           "needs entries that are ranked at every token, and may leave at "
                           "any; \"full\" as asked for has none. auto has");
  for (const char* policy : {"auto", "echo", "snapkv", "ada-h2o"}) {
    request.cache = CacheSpec();
    request.cache.policy = policy;
    if (request.cache.policy != "auto") request.cache.max_cache_tokens = 8;
    EXPECT_EQ(message(), "") << policy;
    request.cache.min_retained_mass = 0.9;
    EXPECT_EQ(message(), evict + "does not go with min_retained_mass, a promise") << policy;
  }
}

// A reservation needs a bound on the cache, from max_tokens or from the policy.
TEST(RequestCheckTest, AGuaranteeHasABound) {
  const FakeTokenizer tokenizer;
  const auto message = [&](const Request& request, const EngineLimits& limits) {
    const auto checked = CheckRequest(request, limits, tokenizer);
    const Failed* failed = std::get_if<Failed>(&checked);
    return failed == nullptr
               ? std::string()
               : absl::StrCat(failed->reason, " ", std::string(failed->status.message()));
  };
  Request request = MakeRequest(20, 10);
  request.on_pressure = OnPressure::kNever;
  EXPECT_EQ(message(request, SmallLimits()), "");
  request.stopping.max_tokens.reset();
  EXPECT_EQ(message(request, SmallLimits()),
            "INVALID stopping.max_tokens: unset, but scheduling.on_pressure ON_PRESSURE_NEVER "
            "promises the request all pages that it may come to hold, and \"full\" as asked for "
            "grows with every token, up to max_model_len 128; set max_tokens, or a cache that has "
            "a cap");
  request.cache.policy = "snapkv";  // caps the prompt alone
  request.cache.max_cache_tokens = 8;
  EXPECT_EQ(message(request, SmallLimits()).substr(0, 30), "INVALID stopping.max_tokens: u");
  request.cache.params["decode_cap"] = "12";
  EXPECT_EQ(message(request, SmallLimits()), "");
  request.cache = LocalCache(12);
  EXPECT_EQ(message(request, SmallLimits()), "");
  request.cache = CacheSpec();
  request.cache.policy = "auto";
  EXPECT_EQ(message(request, SmallLimits()).substr(0, 30), "INVALID stopping.max_tokens: u");
  EngineLimits limits = SmallLimits();
  limits.SetWindow(limits.num_layers, 16);  // no head holds more
  request.cache = CacheSpec();
  EXPECT_EQ(message(request, limits), "");
  request.stopping.max_tokens = 22;
  limits = SmallLimits();
  limits.num_blocks = 40;  // 40 entries in each of 4 heads
  EXPECT_EQ(message(request, limits),
            "NEVER_FITS prompt: 20 tokens and max_tokens 22 need a cache of 41 tokens, the whole "
            "pool holds 40: lower max_tokens or the cache budget");
  request.stopping.max_tokens = 21;
  EXPECT_EQ(message(request, limits), "");
}

TEST(RequestCheckTest, OversizedRequestsAreRefused) {
  const FakeTokenizer tokenizer;
  EngineLimits limits = SmallLimits();
  limits.num_blocks = 40;  // 40 entries in each of 4 heads
  const auto refused = [&](Request request) {
    const auto checked = CheckRequest(std::move(request), limits, tokenizer);
    const Failed* failed = std::get_if<Failed>(&checked);
    if (failed != nullptr) {
      EXPECT_EQ(failed->reason, "NEVER_FITS");
      EXPECT_EQ(failed->status.code(), absl::StatusCode::kResourceExhausted);
      EXPECT_EQ(failed->retry_after_us, 0);
    }
    return failed != nullptr;
  };
  EXPECT_FALSE(refused(MakeRequest(30, 11)));  // the 41st token is not fed
  EXPECT_TRUE(refused(MakeRequest(30, 12)));
  EXPECT_TRUE(refused(MakeRequest(41, 1)));
  Request open_ended = MakeRequest(40, 1);
  open_ended.stopping.max_tokens.reset();
  EXPECT_FALSE(refused(open_ended));
  open_ended.prompt.push_back(1);
  EXPECT_TRUE(refused(open_ended));
  open_ended.cache = LocalCache(40);
  EXPECT_FALSE(refused(open_ended));
  open_ended.cache = LocalCache(41);
  EXPECT_TRUE(refused(open_ended));
  limits.num_blocks = 256;
  limits.table_entries = 40;  // the table is a limit, too
  EXPECT_TRUE(refused(MakeRequest(41, 1)));
}

// Requests with the full cache and without options that a smaller cache would break.
TEST(RequestCheckTest, RequestsWithAFallbackPlan) {
  const FakeTokenizer tokenizer;
  const CacheSpec h2o = *ParseCacheSpec("h2o:max_cache_tokens=12");
  const auto planned = [&](const Request& request, const CacheSpec& spec) {
    const auto checked = CheckRequest(request, SmallLimits(), tokenizer, spec);
    EXPECT_TRUE(std::holds_alternative<CheckedRequest>(checked));
    return std::get<CheckedRequest>(checked).fallback_plan;
  };
  const Request request = MakeRequest(44, 5);
  const auto plan = planned(request, h2o);
  ASSERT_NE(plan, nullptr);
  EXPECT_EQ(plan->plan.budget, 12);
  EXPECT_EQ(plan->plan.prompt.tokens, 44);
  EXPECT_EQ(plan->spec, h2o);
  Request named = request;
  named.cache.policy = "full";
  named.cache.cache_ratio = 1.0;
  named.question_tokens = 4;
  ASSERT_NE(planned(named, h2o), nullptr);
  EXPECT_EQ(planned(named, h2o)->plan.prompt.tokens, 40);
  const std::pair<const char*, std::function<void(Request&)>> kept[] = {
      {"another policy", [](Request& r) { r.cache = LocalCache(20); }},
      {"a promise", [](Request& r) { r.cache.min_retained_mass = 1.0; }},
      {"it becomes a context", [](Request& r) { r.keep_as.handle = "c"; }},
      {"it is resumed", [](Request& r) { r.resume_token_ids = {5}; }},
      {"only read",
       [](Request& r) {
         r.prefill_only = true;
         r.stopping.max_tokens = 1;
       }},
      {"embedded",
       [](Request& r) {
         r.pooling = EmbeddingPooling::kMean;
         r.stopping.max_tokens = 1;
       }},
      {"it takes no fewer pages so", [](Request& r) { r.prompt.resize(6); }},
  };
  for (const auto& [why, spoil] : kept) {
    Request other = request;
    spoil(other);
    EXPECT_EQ(planned(other, h2o), nullptr) << why;
  }
  EXPECT_EQ(planned(request, *ParseCacheSpec("h2o:max_cache_tokens=60")), nullptr);
  EXPECT_TRUE(planned(request, *ParseCacheSpec("reconstruct:cache_ratio=0.1:min_cache_tokens=4"))
                  ->plan.ReadsProbe());
}

TEST(RequestCheckTest, InvalidFallbackPolicies) {
  EXPECT_EQ(*ParsePolicyUnderPressure("wait"), CacheSpec());
  CacheSpec expected;
  expected.policy = "h2o";
  expected.cache_ratio = 0.25;
  expected.sink_tokens = 4;
  expected.params = {{"budget_scope", "layer"}};
  EXPECT_EQ(*ParsePolicyUnderPressure("h2o:cache_ratio=0.25:sink_tokens=4:budget_scope=layer"),
            expected);
  EXPECT_TRUE(ParsePolicyUnderPressure("auto").ok());
  EXPECT_TRUE(ParsePolicyUnderPressure("h2o").ok()) << "a fifth";
  const std::pair<const char*, const char*> bad[] = {
      {"", "'': it begins with the name of a policy"},
      {":cache_ratio=1", "it begins with the name of a policy"},
      {"h3o:cache_ratio=0.2", "cache.cache_policy: 'h3o' is unknown; one of full, local"},
      {"full", "full: is what finds no room"},
      {"h2o:cache_ratio", "settings are written name=value"},
      {"h2o:cache_ratio=much", "cache_ratio: 'much' is no value for it"},
      {"h2o:cache_ratio=2", "cache.cache_ratio: 2 is outside (0, 1]"},
      {"h2o:cache_ratio=0.2:alpha=1", "cache.params: 'alpha' is no parameter of policy h2o"},
      {"h2o:cache_ratio=0.2:head_floor=2",
       "cache.params.head_floor: '2' is not a number in [0, 1]"}};
  for (const auto& [text, message] : bad) {
    const auto parsed = ParsePolicyUnderPressure(text);
    ASSERT_FALSE(parsed.ok()) << text;
    EXPECT_NE(parsed.status().message().find(message), std::string::npos) << parsed.status();
  }
  EngineLimits windows = SmallLimits(), learned = SmallLimits();
  windows.SetWindow(windows.num_layers, 16);
  learned.learned_positions = true;
  const CacheSpec h2o = *ParseCacheSpec("h2o:cache_ratio=0.2");
  const CacheSpec rolling = *ParseCacheSpec("streaming:max_cache_tokens=64:rolling=true");
  EXPECT_TRUE(CheckPolicyUnderPressure(h2o, learned).ok());
  EXPECT_TRUE(CheckPolicyUnderPressure({}, windows).ok());
  for (const absl::Status& status :
       {CheckPolicyUnderPressure(h2o, windows), CheckPolicyUnderPressure(rolling, learned)}) {
    ASSERT_FALSE(status.ok());
    EXPECT_EQ(status.message().find("policy_under_pressure: "), 0u) << status;
  }
}

}  // namespace
}  // namespace hydrant
