// String formats: examples from their specifications, and invalid texts.
#include <gtest/gtest.h>

#include <vector>

#include "tests/engine/text/grammar/grammar_fixture.h"

namespace hydrant {
namespace {

struct Case {
  const char* format;
  std::vector<const char*> good, bad;
};

class StringFormat : public GrammarFixture {};

TEST_F(StringFormat, AsDefined) {
  const Case cases[] = {
      {"date",
       {"2024-02-29", "2000-02-29", "1999-12-31", "2023-04-30"},
       {"2023-02-29", "1900-02-29", "2023-04-31", "2023-13-01", "2023-1-01", "2023-01-00"}},
      {"time",
       {"23:59:59Z", "00:00:00.25+05:30"},
       {"24:00:00Z", "12:00:00", "12:60:00Z", "12:00Z"}},
      {"date-time", {"1985-04-12T23:20:50.52Z"}, {"1985-04-12 23:20:50Z", "1985-04-31T00:00:00Z"}},
      {"duration",
       {"P4DT12H30M5S", "P4Y", "PT0S", "P1M", "PT36H", "P4W"},
       {"P", "PT", "P1D2H", "P1Y2W", "PT1D", "P2D1Y"}},
      {"email", {"joe.bloggs@example.com", "te~st@x"}, {"2962", ".test@x", "a..b@x", "a@-x"}},
      {"hostname", {"www.example.com", "xn--4gbwdl", "a"}, {"-a", "a-", "a..b", "a_b", ""}},
      {"ipv4", {"192.168.0.1", "0.0.0.0", "255.255.255.255"}, {"256.1.1.1", "1.1.1", "01.1.1.1"}},
      {"ipv6",
       {"::", "::1", "1::", "fe80::a", "1:2:3:4:5:6:7:8", "1::3:4:5:6:7:8", "1:2:3:4:5:6:7::"},
       {"1", ":1", "1:2:3:4:5:6:7", "1::2::3", "12345::", "1:2:3:4:5:6:7:8:9", "1:2:3:4:5:6:7::8"}},
      {"uuid", {"2EB8AA08-aa98-11ea-b4aa-73b441d16380"}, {"2eb8aa08-aa98-11ea-b4aa-73b441d1638"}},
      {"uri",
       {"http://foo.bar/?baz=qux#quux", "urn:a:b", "ftp://u:p@h:1/p//q", "file:/x", "a:", "x://"},
       {"//foo.bar/", "/abc", "http://foo bar", "1http:x", "http:%zz"}},
      {"uri-reference", {"/abc", "abc", "#a", "//x/y?z", "http://a", ""}, {"a b", "%", "1:x"}},
      {"uri-template", {"http://x/{term:1}/{+v,w*}{?q}", ""}, {"http://x/{term", "{}", "a b"}},
      {"json-pointer", {"", "/foo/0", "/a~1b/m~0n", "/"}, {"a", "/foo/bar~", "/~2"}},
      {"relative-json-pointer", {"0", "1/0", "2/a~1", "0#"}, {"01", "/foo", "-1"}},
  };
  for (const Case& format : cases) {
    const JsonSchema schema{std::string(R"({"type":"string","format":")") + format.format + "\"}"};
    for (const std::string text : format.good)
      EXPECT_TRUE(Admits(schema, "\"" + text + "\"")) << format.format << " " << text;
    for (const std::string text : format.bad)
      EXPECT_FALSE(Admits(schema, "\"" + text + "\"")) << format.format << " " << text;
    // Texts with characters that must be escaped in a JSON string.
    for (const std::string text : {"\"", "/\"", "/\n", "\\\"\\z\\\"@a", "/\\z"})
      EXPECT_FALSE(Admits(schema, "\"" + text + "\"")) << format.format << " " << text;
  }
  EXPECT_TRUE(Admits(JsonSchema{R"({"type":"string","format":"other"})"}, "\"a \\\" b\""));
}

}  // namespace
}  // namespace hydrant
