// Calls to a store that does not answer: every caller returns by its deadline, the circuit breaker
// opens and closes again, and abandoned calls keep their order.
#include "scheduler/store/guarded_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stdexcept>
#include <thread>

#include "scheduler/named_locks.h"
#include "tests/scheduler/gated_store.h"

namespace hydrant {
namespace {

using std::chrono::milliseconds, std::chrono::seconds;
using testing::HasSubstr;
using Call = Gate::Call;

StoreWait Shortly() { return StoreWait::For(milliseconds(110)); }
StoreWait Patiently() { return StoreWait::For(seconds(60)); }

// A store and the state changes that its circuit breaker has reported.
struct Guarded {
  explicit Guarded(int failures = 3)
      : store(std::make_unique<GatedStore>(gate),
              {.failures = failures, .on_change = [this](const absl::Status& why) {
                 reported.push_back(why.ok() ? "closed" : std::string(why.message()));
               }}) {}
  ~Guarded() { gate->Open(); }

  std::shared_ptr<Gate> gate = std::make_shared<Gate>();
  std::vector<std::string> reported;
  GuardedStore store;
};

TEST(Circuit, OpensAfterFailuresInARowAndClosesWithAnAnswer) {
  std::vector<bool> reported;
  Circuit circuit(2, [&](const absl::Status& why) { reported.push_back(why.ok()); });
  Circuit::Time now{};
  const absl::Status gone = absl::UnavailableError("gone");
  circuit.Failed(gone, now);
  circuit.Succeeded();
  circuit.Failed(gone, now);
  EXPECT_TRUE(circuit.Enter(now).ok()) << "not in a row";
  circuit.Failed(gone, now);
  EXPECT_TRUE(circuit.is_open());
  EXPECT_THAT(std::string(circuit.Enter(now).message()), HasSubstr("gone"));
  EXPECT_TRUE(circuit.Refuses(now + milliseconds(999)));
  // Half open: one trial call at a time, after growing pauses.
  now += seconds(1);
  for (const int pause : {2, 4, 8, 16, 32, 32}) {
    EXPECT_TRUE(circuit.Enter(now).ok());
    EXPECT_FALSE(circuit.Enter(now).ok()) << "another one tries";
    circuit.Failed(gone, now);
    circuit.Failed(gone, now);  // of a call that began earlier
    EXPECT_FALSE(circuit.Enter(now + seconds(pause) - milliseconds(1)).ok());
    now += seconds(pause);
  }
  EXPECT_TRUE(circuit.Enter(now).ok());
  EXPECT_TRUE(circuit.Enter(now + seconds(32)).ok()) << "who tried may never report";
  circuit.Succeeded();
  EXPECT_TRUE(circuit.Enter(now).ok());
  EXPECT_EQ(circuit.openings(), 1u);
  EXPECT_THAT(reported, testing::ElementsAre(false, true));
}

TEST(GuardedStore, ForwardsResults) {
  Guarded guarded;
  GuardedStore& store = guarded.store;
  EXPECT_TRUE(absl::IsNotFound(store.Get("a", 10, Patiently()).status()));
  EXPECT_TRUE(store.Put("a", "x", std::nullopt, Patiently()).ok());
  EXPECT_EQ(store.Get("a", 10, Patiently()).value(), "x");
  EXPECT_EQ(store.SizeOf("a", Patiently()).value(), 1);
  EXPECT_EQ(store.List("", Patiently())->size(), 1u);
  EXPECT_TRUE(store.Delete("a", Patiently()).value());
  EXPECT_FALSE(store.Delete("a", Patiently()).value());
}

// Iterators of std::filesystem throw if a disk fails in the middle of a listing.
TEST(GuardedStore, AnExceptionIsAnError) {
  Guarded guarded;
  guarded.gate->Hold(
      [](Call, const std::string&) -> bool { throw std::runtime_error("bad disk"); });
  const absl::Status status = guarded.store.Get("a", 10, Patiently()).status();
  EXPECT_TRUE(absl::IsUnavailable(status));
  EXPECT_EQ(status.message(), "bad disk");
}

TEST(GuardedStore, ADeadOneIsLeftAloneAndFoundAgain) {
  Guarded guarded;
  guarded.gate->Hold([](Call, const std::string&) { return true; });
  for (int i = 0; i < 3; ++i) {
    const absl::Status status = guarded.store.Get("a", 10, Shortly()).status();
    EXPECT_TRUE(absl::IsUnavailable(status));
    EXPECT_EQ(status.message(), "the gated store did not answer in time");
  }
  EXPECT_TRUE(guarded.store.IsCircuitOpen());
  // The open circuit skips the store, so this call returns at once.
  const int calls = guarded.gate->calls();
  EXPECT_TRUE(absl::IsUnavailable(guarded.store.Get("a", 10, Patiently()).status()));
  EXPECT_EQ(guarded.gate->calls(), calls);
  guarded.gate->Open();
  for (int i = 0; i < 6'000 && guarded.store.circuit().is_open(); ++i) {  // a minute
    (void)guarded.store.Get("a", 10, Patiently());
    std::this_thread::sleep_for(milliseconds(10));
  }
  EXPECT_THAT(guarded.reported,
              testing::ElementsAre("the gated store did not answer in time", "closed"));
}

// The caller's deadline has passed already.
TEST(GuardedStore, ACallWithoutTimeSaysNothingAboutTheStore) {
  Guarded guarded(1);
  guarded.gate->Hold([](Call, const std::string&) { return true; });
  for (const int left_ms : {-1000, 0, 20}) {
    const StoreWait wait = StoreWait::For(milliseconds(left_ms));
    EXPECT_TRUE(absl::IsUnavailable(guarded.store.Get("a", 10, wait).status()));
  }
  EXPECT_FALSE(guarded.store.IsCircuitOpen());
  EXPECT_FALSE(guarded.store.Get("a", 10, Shortly()).ok());
  EXPECT_TRUE(guarded.store.IsCircuitOpen());
}

// With more callers than threads, every caller returns at its deadline.
TEST(GuardedStore, FailsFastIfAllThreadsAreBusy) {
  Guarded guarded(1000);
  guarded.gate->Hold([](Call, const std::string&) { return true; });
  std::vector<std::thread> callers;
  callers.reserve(40);
  for (int i = 0; i < 40; ++i) {
    callers.emplace_back(
        [&] { EXPECT_TRUE(absl::IsUnavailable(guarded.store.Get("a", 10, Shortly()).status())); });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_LE(guarded.gate->calls(), 16);
}

TEST(GuardedStore, ACallerStopsOnRequest) {
  Guarded guarded;
  guarded.gate->Hold([](Call, const std::string&) { return true; });
  std::stop_source gone;
  std::thread client([&] {
    guarded.gate->WaitUntilHeld(1);
    gone.request_stop();
  });
  const StoreWait wait = StoreWait::For(std::chrono::hours(1), gone.get_token());
  EXPECT_TRUE(absl::IsCancelled(guarded.store.Get("a", 10, wait).status()));
  EXPECT_TRUE(absl::IsCancelled(guarded.store.Get("a", 10, wait).status())) << "already";
  EXPECT_EQ(guarded.gate->calls(), 1);
  client.join();
  EXPECT_FALSE(guarded.store.circuit().is_open()) << "the store is not to blame";
}

TEST(GuardedStore, StopEndsAllThatWait) {
  Guarded guarded;
  guarded.gate->Hold([](Call, const std::string&) { return true; });
  std::thread caller([&] {
    const StoreWait wait = StoreWait::For(std::chrono::hours(1));
    EXPECT_THAT(std::string(guarded.store.Get("a", 10, wait).status().message()),
                HasSubstr("shutting down"));
  });
  guarded.gate->WaitUntilHeld(1);
  guarded.store.Stop();
  caller.join();
  EXPECT_FALSE(guarded.store.Put("a", "x", std::nullopt, Patiently()).ok());
}

TEST(GuardedStore, StopWaitsForRunningCalls) {
  Guarded guarded;
  guarded.gate->Hold([](Call, const std::string&) { return true; });
  std::thread caller(
      [&] { EXPECT_TRUE(guarded.store.Put("a", "x", std::nullopt, Patiently()).ok()); });
  guarded.gate->WaitUntilHeld(1);
  std::thread store([&] {
    std::this_thread::sleep_for(milliseconds(20));
    guarded.gate->Open();
  });
  guarded.store.Stop(Patiently().deadline);
  caller.join();
  store.join();
  EXPECT_THAT(guarded.gate->Keys(), testing::ElementsAre("a"));
}

// A Put may still be written after its caller has abandoned it, but not after a later Delete.
TEST(GuardedStore, ADeletionWaitsForTheWriteBeforeIt) {
  Guarded guarded(1000);
  guarded.gate->Hold(
      [](Call call, const std::string& key) { return call == Call::kPut && key == "a"; });
  EXPECT_FALSE(guarded.store.Put("a", "x", std::nullopt, Shortly()).ok());
  EXPECT_TRUE(absl::IsUnavailable(guarded.store.Delete("a", Shortly()).status()));
  EXPECT_FALSE(guarded.store.Delete("b", Patiently()).value()) << "of another key";
  guarded.gate->Open();
  EXPECT_TRUE(guarded.store.Delete("a", Patiently()).value());
  EXPECT_THAT(guarded.gate->Keys(), testing::IsEmpty());
}

TEST(NamedLocks, OneAtATimeForEachName) {
  NamedLocks locks;
  std::optional<NamedLocks::Lock> first = locks.Acquire("a", Patiently());
  ASSERT_TRUE(first.has_value());
  EXPECT_TRUE(locks.Acquire("b", Patiently()).has_value());
  EXPECT_FALSE(locks.Acquire("a", Shortly()).has_value());
  std::stop_source gone;
  gone.request_stop();
  EXPECT_FALSE(
      locks.Acquire("c", StoreWait::For(std::chrono::hours(1), gone.get_token())).has_value())
      << "though it is free";
  EXPECT_FALSE(
      locks.Acquire("a", StoreWait::For(std::chrono::hours(1), gone.get_token())).has_value());
  std::thread next([&] { EXPECT_TRUE(locks.Acquire("a", Patiently()).has_value()); });
  first.reset();
  next.join();
}

}  // namespace
}  // namespace hydrant
