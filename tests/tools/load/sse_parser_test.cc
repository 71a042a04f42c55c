#include "tools/load/targets/sse_parser.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace hydrant::load {
namespace {

using testing::ElementsAre;

std::vector<std::string> Parse(const std::string& bytes, size_t at_once) {
  SseParser parser;
  std::vector<std::string> events;
  for (size_t begin = 0; begin < bytes.size(); begin += at_once)
    parser.Feed(std::string_view(bytes).substr(begin, at_once),
                [&](std::string_view data) { events.emplace_back(data); });
  return events;
}

TEST(SseParserTest, BytesMayBeCutAnywhere) {
  const std::string stream =
      ": a comment\n\ndata: {\"a\": 1}\n\nevent: x\nid: 3\ndata:two\r\ndata:  lines\r\n\r\n\n"
      "data\n\ndata: [DONE]\n\ndata: has no end";
  for (size_t at_once = 1; at_once <= stream.size(); ++at_once)
    EXPECT_THAT(Parse(stream, at_once), ElementsAre("{\"a\": 1}", "two\n lines", "[DONE]"))
        << at_once << " bytes at once";
}

}  // namespace
}  // namespace hydrant::load
