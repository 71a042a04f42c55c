// Quotas, with a clock of the test.
#include "server/auth/tenant_account.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

namespace hydrant {
namespace {

using testing::HasSubstr;
using Admission = TenantAccount::Admission;

constexpr TimeUs kSecond = 1'000'000;

class Account {
 public:
  explicit Account(const Quotas& quotas)
      : account(std::make_shared<TenantAccount>("acme", quotas)) {}

  std::shared_ptr<Admission> Admit(TimeUs now) {
    auto admitted = account->Admit(now);
    if (auto* refused = std::get_if<Refusal>(&admitted)) {
      refusal = std::move(*refused);
      EXPECT_TRUE(absl::IsResourceExhausted(refusal.status));
      EXPECT_EQ(refusal.reason, "QUOTA");
      return nullptr;
    }
    return std::get<0>(std::move(admitted));
  }
  // A request that ends immediately.
  bool Run(TimeUs now, const Usage& usage = {}) {
    const auto admission = Admit(now);
    if (admission != nullptr) admission->Charge(usage);
    return admission != nullptr;
  }

  std::shared_ptr<TenantAccount> account;
  Refusal refusal;  // the latest
};

TEST(TenantAccount, WithoutQuotasEverythingIsLetInAndCounted) {
  Account account({});
  for (int i = 0; i < 100; ++i)
    EXPECT_TRUE(account.Run(0, {.prompt_tokens = 1000, .completion_tokens = 7}));
  const TenantUse use = account.account->Use();
  EXPECT_EQ(use.requests, 100);
  EXPECT_EQ(use.prompt_tokens, 100'000);
  EXPECT_EQ(use.generation_tokens, 700);
  EXPECT_EQ(use.running, 0);
  EXPECT_EQ(use.refused, 0);
}

TEST(TenantAccount, RequestsPerMinuteComeBackOneByOne) {
  Account account({.requests_per_minute = 6});
  for (int i = 0; i < 6; ++i) EXPECT_TRUE(account.Run(0)) << i;
  EXPECT_FALSE(account.Run(0));
  EXPECT_EQ(account.refusal.retry_after_us, 10 * kSecond);
  EXPECT_THAT(std::string(account.refusal.status.message()),
              HasSubstr("quota of tenant acme: requests_per_minute, 6"));
  EXPECT_FALSE(account.Run(10 * kSecond - 1));
  EXPECT_TRUE(account.Run(10 * kSecond));
  EXPECT_FALSE(account.Run(10 * kSecond));
  // Never more than a minute's worth.
  for (int i = 0; i < 6; ++i) EXPECT_TRUE(account.Run(3600 * kSecond)) << i;
  EXPECT_FALSE(account.Run(3600 * kSecond));
}

TEST(TenantAccount, TokensAreChargedWhenTheyAreKnown) {
  Account account({.tokens_per_minute = 600});
  // More than is left: it still ends, and leaves a debt of 300.
  EXPECT_TRUE(account.Run(0, {.prompt_tokens = 800, .completion_tokens = 100}));
  EXPECT_FALSE(account.Run(0));
  EXPECT_NEAR(account.refusal.retry_after_us, 30.1 * kSecond, 1) << "to the first token";
  EXPECT_FALSE(account.Run(30 * kSecond));
  EXPECT_TRUE(account.Run(31 * kSecond));
}

TEST(TenantAccount, PageSecondsAreThoseInWhichPagesWereHeld) {
  Account account({.page_seconds_per_minute = 60});
  const Usage usage{.kv_pages_mean = 10,
                    .queue_us = 100 * kSecond,
                    .prefill_us = 2 * kSecond,
                    .decode_us = 9 * kSecond,
                    .swapped_us = 2 * kSecond,
                    .preempted_us = 1 * kSecond};
  EXPECT_TRUE(account.Run(0, usage));
  EXPECT_DOUBLE_EQ(account.account->Use().page_seconds, 80);
  EXPECT_FALSE(account.Run(20 * kSecond)) << "20 too many, one comes back a second";
  EXPECT_TRUE(account.Run(21 * kSecond));
  Account small({.page_seconds_per_minute = 0.25});
  EXPECT_TRUE(small.Run(0)) << "a tenant that has used nothing may begin";
}

TEST(TenantAccount, AsManyRunAsMay) {
  Account account({.concurrent_requests = 2});
  const auto first = account.Admit(0);
  auto second = account.Admit(0);
  EXPECT_EQ(account.Admit(0), nullptr);
  EXPECT_GT(account.refusal.retry_after_us, 0);
  EXPECT_EQ(account.account->Use().running, 2);
  first->Charge({});
  EXPECT_NE(account.Admit(0), nullptr) << "and this one goes at once";
  second->Release();
  second->Release();
  EXPECT_EQ(account.account->Use().running, 0);
  EXPECT_EQ(account.account->Use().refused, 1);
}

TEST(TenantAccount, ContextsCountFromTheRequestThatWillKeepThem) {
  Account account({.contexts = 3});
  const auto first = account.Admit(0), second = account.Admit(0);
  EXPECT_FALSE(first->Keep(1).has_value());
  EXPECT_FALSE(second->Keep(1).has_value());
  const auto third = account.Admit(0);
  const auto refusal = third->Keep(1);
  ASSERT_TRUE(refusal.has_value());
  EXPECT_EQ(refusal->reason, "QUOTA");
  EXPECT_EQ(refusal->retry_after_us, 0) << "waiting does not help";
  first->Release();
  EXPECT_FALSE(third->Keep(1).has_value());
}

TEST(TenantAccount, NewQuotasHoldFromNowOn) {
  Account account({.requests_per_minute = 2});
  EXPECT_TRUE(account.Run(0));
  account.account->SetQuotas({.requests_per_minute = 60});
  EXPECT_TRUE(account.Run(0));
  EXPECT_FALSE(account.Run(0)) << "a greater quota is not a new minute";
  account.account->SetQuotas({});
  EXPECT_TRUE(account.Run(0));
  account.account->SetQuotas({.requests_per_minute = 1});
  EXPECT_TRUE(account.Run(0));
  EXPECT_FALSE(account.Run(0));
}

}  // namespace
}  // namespace hydrant
