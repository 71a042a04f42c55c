// traceparent and tracestate by W3C's recommendation of 23 November 2021: its examples, and the
// cases of its test suite for servers.
#include "server/observe/trace_context.h"

#include <gtest/gtest.h>

#include <set>

namespace hydrant {
namespace {

constexpr char kTraceId[] = "4bf92f3577b34da6a3ce929d0e0e4736";
constexpr char kSpanId[] = "00f067aa0ba902b7";

TEST(Traceparent, IsRead) {
  struct Case {
    const char* header;
    bool sampled;
  };
  for (const Case& one : {
           Case{"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", true},
           {"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00", false},
           // Unknown flags are ignored.
           {"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-ff", true},
           {"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-fe", false},
           {" \t00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01 ", true},
           // Later versions: known fields are used.
           {"01-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", true},
           {"cc-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", true},
           {"cc-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-what-the-future", true},
           {"cc-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-", true},
           {"fe-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00-1", false},
       }) {
    SCOPED_TRACE(one.header);
    const auto context = ParseTraceparent(one.header);
    ASSERT_TRUE(context.has_value());
    EXPECT_EQ(ToHex(context->trace_id), kTraceId);
    EXPECT_EQ(ToHex(context->span_id), kSpanId);
    EXPECT_EQ(context->sampled, one.sampled);
  }
}

TEST(Traceparent, IsIgnoredIfInvalid) {
  for (const char* header : {
           "",
           "00",
           "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7",
           "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-",
           "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-1",
           "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-0x",
           "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-.0",
           // More fields than version 00 has.
           "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-010",
           "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-",
           "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-what",
           // All zero.
           "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
           "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
           // Capitals and non-digits.
           "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
           "00-4bf92f3577b34da6a3ce929d0e0e4736-00F067AA0BA902B7-01",
           "00-.bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
           "00-4bf92f3577b34da6a3ce929d0e0e4736-.0f067aa0ba902b7-01",
           "0g-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
           "CC-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
           // Lengths and separators.
           "00-4bf92f3577b34da6a3ce929d0e0e473-00f067aa0ba902b7-01",
           "00-4bf92f3577b34da6a3ce929d0e0e47366-00f067aa0ba902b7-01",
           "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b-01",
           "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b77-01",
           "0-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-011",
           "00_4bf92f3577b34da6a3ce929d0e0e4736_00f067aa0ba902b7_01",
           "00-4bf92f3577b34da6a3ce929d0e0e4736 00f067aa0ba902b7-01",
           // Versions: ff is invalid, and additions of a later one begin with a dash.
           "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
           "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-more",
           "cc-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01.what",
           "cc-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-011",
       }) {
    EXPECT_FALSE(ParseTraceparent(header).has_value()) << header;
  }
}

TEST(Tracestate, IsPassedOnAsItCame) {
  const std::string longest = std::string(256, 'k') + "=" + std::string(256, 'v');
  const std::string of_tenant = "0" + std::string(240, 't') + "@" + std::string(14, 'v') + "=1";
  EXPECT_EQ(JoinTracestate({}), "");
  EXPECT_EQ(JoinTracestate({""}), "");
  EXPECT_EQ(JoinTracestate({"congo=t61rcWkgMzE"}), "congo=t61rcWkgMzE");
  EXPECT_EQ(JoinTracestate({"rojo=00f067aa0ba902b7,congo=t61rcWkgMzE"}),
            "rojo=00f067aa0ba902b7,congo=t61rcWkgMzE");
  EXPECT_EQ(JoinTracestate({"a=1", "b=2,c=3"}), "a=1,b=2,c=3");
  EXPECT_EQ(JoinTracestate({"a=1 , \t b=2,,", ",c=3"}), "a=1,b=2,c=3");
  EXPECT_EQ(JoinTracestate({"a0_-*/=! ~;:"}), "a0_-*/=! ~;:");
  EXPECT_EQ(JoinTracestate({longest}), longest);
  EXPECT_EQ(JoinTracestate({of_tenant}), of_tenant);
}

TEST(Tracestate, IsDroppedIfInvalid) {
  std::string many;
  for (int i = 0; i < 33; ++i) many += "k" + std::to_string(i) + "=1,";
  for (const std::string& header : {
           std::string("foo"),
           std::string("=1"),
           std::string("foo="),
           std::string("foo=1,bar"),
           std::string("foo =1"),
           std::string("FOO=1"),
           std::string("foo.bar=1"),
           std::string("0foo=1"),
           std::string("foo@=1"),
           std::string("@foo=1"),
           std::string("foo@@bar=1"),
           std::string("foo@bar@baz=1"),
           std::string("foo@0bar=1"),
           std::string("foo=bar=baz"),
           std::string("foo=\x7F"),
           std::string("foo=\xC3\xA4"),
           std::string("foo=1,foo=1"),
           std::string("foo=1,bar=2,foo=3"),
           std::string(257, 'k') + "=1",
           "k=" + std::string(257, 'v'),
           std::string(242, 't') + "@v=1",
           "t@" + std::string(15, 'v') + "=1",
           many,
       }) {
    EXPECT_EQ(JoinTracestate({header}), "") << header;
    EXPECT_EQ(JoinTracestate({"good=1", header}), "") << header;
  }
  EXPECT_NE(JoinTracestate({many.substr(many.find(',') + 1)}), "");
}

TEST(TraceIds, AreNeverTheSame) {
  std::set<std::string> traces, spans;
  for (int i = 0; i < 1000; ++i) {
    traces.insert(NewTraceId());
    spans.insert(NewSpanId());
  }
  EXPECT_EQ(traces.size(), 1000u);
  EXPECT_EQ(spans.size(), 1000u);
  EXPECT_EQ(traces.begin()->size(), 16u);
  EXPECT_EQ(spans.begin()->size(), 8u);
}

// As TraceIdRatioBased in OpenTelemetry's libraries: 63 bits of the id's second half, as a share.
TEST(TraceIds, AreAmongAShareByTheirSecondHalf) {
  const auto of = [](uint8_t high, uint8_t low) {
    std::string id(16, '\xFF');
    id.replace(8, 8,
               std::string(1, static_cast<char>(high)) + std::string(7, static_cast<char>(low)));
    return id;
  };
  EXPECT_FALSE(IsAmong(0, of(0, 0)));
  EXPECT_FALSE(IsAmong(0, of(0xFF, 0xFF)));
  EXPECT_TRUE(IsAmong(1, of(0xFF, 0xFF)));
  EXPECT_TRUE(IsAmong(0.5, of(0x7F, 0xF0)));
  EXPECT_FALSE(IsAmong(0.5, of(0x80, 0)));
  EXPECT_TRUE(IsAmong(0.25, of(0x3F, 0xF0)));
  EXPECT_FALSE(IsAmong(0.25, of(0x40, 0)));
  EXPECT_TRUE(IsAmong(1e-9, of(0, 0)));
}

}  // namespace
}  // namespace hydrant
