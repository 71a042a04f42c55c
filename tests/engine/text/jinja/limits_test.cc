// Templates that would loop endlessly, exhaust the stack or allocate without bound: each quickly
// ends with an error that names its limit.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "engine/text/jinja/json.h"
#include "engine/text/jinja/template.h"
#include "tests/engine/text/jinja/fixed_time.h"

namespace hydrant::jinja {
namespace {

using ::testing::HasSubstr;

std::string Repeat(std::string_view text, int times) {
  std::string out;
  for (int i = 0; i < times; ++i) out += text;
  return out;
}

// The text, or the error's message.
std::string Render(const std::string& source) {
  const auto parsed = Template::Parse(source);
  if (!parsed.ok()) return std::string(parsed.status().message());
  const auto text = (*parsed)->Render(Dict(), FixedTime());
  return text.ok() ? *text : std::string(text.status().message());
}

std::string Loop(const std::string& body) {
  return "{% set ns = namespace(x='x', l=[]) %}{% for i in range(100000) %}{% for j in "
         "range(100000) %}" +
         body + "{% endfor %}{% endfor %}";
}

TEST(JinjaLimits, Steps) {
  EXPECT_THAT(Render(Loop("")), HasSubstr("takes more than 20000000 steps"));
  EXPECT_THAT(Render(Loop("{% if ns.x == 'y' %}{% endif %}")), HasSubstr("steps"));
}

TEST(JinjaLimits, Memory) {
  EXPECT_THAT(Render("{{ 'x' * 1000000000 }}"), HasSubstr("a value of more than 67108864 bytes"));
  EXPECT_THAT(Render("{{ [0] * 1000000000 }}"), HasSubstr("bytes"));
  EXPECT_THAT(Render("{{ 'x' * 9223372036854775807 }}"), HasSubstr("bytes"));
  EXPECT_THAT(Render(Loop("{% set ns.x = ns.x ~ ns.x %}")), HasSubstr("bytes"));
  EXPECT_THAT(Render(Loop("{% set ns.x = ns.x.replace('x', 'xxxx') %}")), HasSubstr("bytes"));
  EXPECT_THAT(Render(Loop("{% set ns.l = ns.l + ['x' * 1000000] %}")),
              HasSubstr("allocates more than 1073741824 bytes"));
  EXPECT_THAT(Render("{{ 'x'.center(1000000000) }}"), HasSubstr("bytes"));
  EXPECT_THAT(Render("{{ '%1000000000d' % 1 }}"), HasSubstr("bytes"));
  EXPECT_THAT(Render("{{ '{:1000000000}'.format(1) }}"), HasSubstr("bytes"));
  EXPECT_THAT(Render("{{ 'a\nb'|indent(1000000000) }}"), HasSubstr("bytes"));
  EXPECT_THAT(Render("{{ 'x'|batch(1000000000, 'y')|list }}"), HasSubstr("bytes"));
  EXPECT_THAT(Render(Loop("{{ 'x' * 10000000 }}")), HasSubstr("more than 67108864 bytes"));
}

TEST(JinjaLimits, Range) {
  EXPECT_THAT(Render("{{ range(1000000000) }}"), HasSubstr("MAX_RANGE (100000)"));
  EXPECT_EQ(Render("{{ range(9223372036854775806, 9223372036854775807)|length }}"), "1");
}

TEST(JinjaLimits, DepthOfValues) {
  EXPECT_THAT(Render(Loop("{% set ns.l = [ns.l] %}")), HasSubstr("nests values more than 100"));
  EXPECT_THAT(Render(Loop("{% set ns.l = {'k': ns.l} %}")), HasSubstr("nests values"));
  EXPECT_THAT(Render(Loop("{% set ns.l = cycler(ns.l) %}")), HasSubstr("nests values"));
  EXPECT_THAT(Render(Loop("{% set ns.l = [ns.l, ns.l] %}")), HasSubstr("parts"));
}

TEST(JinjaLimits, ValuesThatHoldThemselves) {
  EXPECT_THAT(Render("{% set ns = namespace() %}{% set ns.x = ns %}{{ ns }}"),
              HasSubstr("nests deeper than 100"));
  EXPECT_EQ(
      Render("{% set ns = namespace() %}{% macro m() %}{% set ns.m = m %}{% set ns.l = [ns] %}"
             "ok{% endmacro %}{{ m() }}{{ ns.m() }}"),
      "okok");
  EXPECT_THAT(Render(Loop("{% set ns.l = namespace(next=ns.l) %}")), HasSubstr("more than"));
}

TEST(JinjaLimits, Recursion) {
  EXPECT_THAT(Render("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}"),
              HasSubstr("nests evaluations deeper than 500"));
  EXPECT_EQ(Render("{% macro m(n) %}{% if n > 0 %}{{ n }}{{ m(n - 1) }}{% endif %}{% endmacro %}"
                   "{{ m(50) }}")
                .substr(0, 6),
            "504948");
}

TEST(JinjaLimits, DepthOfTheSource) {
  EXPECT_THAT(Render("{{ " + Repeat("(", 100000) + "1" + Repeat(")", 100000) + " }}"),
              HasSubstr("an expression nests deeper than 100"));
  EXPECT_THAT(Render("{{ " + Repeat("1 + ", 100000) + "1 }}"), HasSubstr("nests deeper than 100"));
  EXPECT_THAT(Render("{{ x" + Repeat(".a", 100000) + " }}"), HasSubstr("nests deeper than 100"));
  EXPECT_THAT(Render("{{ x" + Repeat("|trim", 100000) + " }}"), HasSubstr("nests deeper than 100"));
  EXPECT_THAT(Render("{{ " + Repeat("not ", 100000) + "x }}"), HasSubstr("nests deeper than 100"));
  EXPECT_THAT(Render("{{ " + Repeat("-", 100000) + "1 }}"), HasSubstr("nests deeper than 100"));
  EXPECT_THAT(Render("{{ " + Repeat("1 if 1 else ", 50000) + "1 }}"), HasSubstr("deeper than 100"));
  EXPECT_THAT(Render("{{ x" + Repeat("[x", 100000) + Repeat("]", 100000) + " }}"),
              HasSubstr("nests deeper than 100"));
  EXPECT_THAT(Render(Repeat("{% if x %}", 90000)), HasSubstr("statements nest deeper than 100"));
  EXPECT_THAT(Render(std::string(2 << 20, 'x')), HasSubstr("at most 1048576 are allowed"));
  EXPECT_EQ(Render("{{ " + Repeat("1 ~ ", 5000) + "1 }}").size(), 5001u);
}

TEST(JinjaLimits, Json) {
  const auto error = [](const std::string& text) {
    return std::string(ParseJson(text, Limits()).status().message());
  };
  EXPECT_THAT(error(Repeat("[", 100000)), HasSubstr("nesting deeper than 50"));
  EXPECT_THAT(error("[9223372036854775808]"), HasSubstr("an integer beyond 64 bits"));
  EXPECT_THAT(error("[123456789012345678901234567890]"), HasSubstr("an integer beyond 64 bits"));
  EXPECT_EQ(error("{\"a\": 1,}"), "is not JSON at byte 8");
  EXPECT_THAT(error("\"\xFF\""), HasSubstr("is not JSON"));
}

TEST(JinjaTemplate, AnErrorHasTheInnermostLine) {
  EXPECT_EQ(Render("a\n{% for i in [1] %}\n{{ i +\n nope }}\n{% endfor %}"),
            "line 3: 'nope' is undefined");
  EXPECT_EQ(Render("\n\n{{ raise_exception('As it is.') }}"), "As it is.");
}

// Expected values are from Python's strftime() for a time without a zone, as datetime.now()
// returns.
TEST(JinjaTemplate, TimeHasNoZone) {
  for (const auto& [format, text] :
       std::vector<std::pair<std::string, std::string>>{{"%Z", ""},
                                                        {"%z", ""},
                                                        {"", ""},
                                                        {"%f", "000000"},
                                                        {"%H:%M %Z|", "13:45 |"},
                                                        {"a%%Zb", "a%Zb"},
                                                        {"%d %B %Y", "26 July 2024"}})
    EXPECT_EQ(Render("{{ strftime_now('" + format + "') }}"), text) << format;
}

TEST(JinjaTemplate, ManyThreadsRenderOne) {
  const auto parsed = Template::Parse(
      "{% set ns = namespace(n=0) %}{% for i in range(2000) %}{% set ns.n = ns.n + i %}{% endfor "
      "%}{{ ns.n }}");
  ASSERT_TRUE(parsed.ok());
  std::vector<std::thread> threads;
  threads.reserve(4);
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int j = 0; j < 20; ++j)
        EXPECT_EQ((*parsed)->Render(Dict(), FixedTime()).value(), "1999000");
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace hydrant::jinja
