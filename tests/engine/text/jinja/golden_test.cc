// Compares templates with transformers and jinja2 (tests/goldens/chat_templates.py).
#include <gtest/gtest.h>

#include <fstream>
#include <iomanip>
#include <nlohmann/json.hpp>
#include <sstream>

#include "engine/text/jinja/json.h"
#include "engine/text/jinja/template.h"
#include "tests/engine/text/jinja/fixed_time.h"
#include "tests/test_files.h"

namespace hydrant::jinja {
namespace {

using Json = nlohmann::ordered_json;

Json ReadJson(const std::string& path) {
  std::ifstream file(path);
  EXPECT_TRUE(file.good()) << path;
  return Json::parse(file);
}

std::string Fnv(const std::string& text) {
  uint64_t hash = 0xCBF29CE484222325;
  for (const char c : text) hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001B3;
  std::ostringstream hex;
  hex << std::hex << std::setw(16) << std::setfill('0') << hash;
  return hex.str();
}

Value FromJson(const Json& json) {
  auto value = ParseJson(json.dump(), Limits());
  EXPECT_TRUE(value.ok()) << value.status();
  return *value;
}

absl::StatusOr<std::string> Render(const std::string& source, const Value& variables) {
  const auto parsed = Template::Parse(source);
  if (!parsed.ok()) return parsed.status();
  return (*parsed)->Render(*variables.AsDict(), FixedTime());
}

TEST(JinjaGoldens, RendersAsJinja2) {
  const Json goldens = ReadJson("tests/data/jinja/goldens.json");
  const Value variables = FromJson(goldens["variables"]);
  int rendered = 0, refused = 0;
  for (const Json& item : goldens["cases"]) {
    const auto source = item["template"].get<std::string>();
    const auto text = Render(source, variables);
    if (item["text"].is_null()) {
      ++refused;
      EXPECT_FALSE(text.ok()) << source << "\n" << *text;
      if (item.contains("raised")) {
        EXPECT_EQ(std::string(text.status().message()), item["raised"].get<std::string>());
      }
      continue;
    }
    ++rendered;
    EXPECT_EQ(text.ok() ? *text : text.status().ToString(), item["text"].get<std::string>())
        << source;
  }
  EXPECT_GT(rendered, 400);
  EXPECT_GT(refused, 30);
}

// The hashed result of a rendering: its text, or its failure with the template's own message.
std::string Outcome(const absl::StatusOr<std::string>& text) {
  if (text.ok()) return Fnv("text:" + *text);
  const std::string message(text.status().message());
  return Fnv("error:" + (message.starts_with("line ") ? "" : message));
}

TEST(JinjaGoldens, PublishedTemplatesRenderAsInTransformers) {
  const auto path = DataFile("templates/chat_templates.json");
  if (!path) GTEST_SKIP() << "templates/chat_templates.json is absent (set HYDRANT_DATA_DIR)";
  const Json sources = ReadJson(*path);
  const Json goldens = ReadJson("tests/data/jinja/published.json");
  int renderings = 0;
  for (const Json& item : goldens["templates"]) {
    const auto name = item["name"].get<std::string>();
    const auto source = sources.at(name).get<std::string>();
    ASSERT_EQ(Fnv(source), item["template"].get<std::string>()) << name << " is another text";
    const auto hashes = item["renderings"].get<std::string>();
    size_t at = 0;
    for (const Json& conversation : goldens["conversations"]) {
      for (const bool prompt : {true, false}) {
        Json variables = conversation["variables"];
        variables["tools"] = goldens["toolsets"][conversation["tools"].get<size_t>()];
        variables["add_generation_prompt"] = prompt;
        EXPECT_EQ(Outcome(Render(source, FromJson(variables))), hashes.substr(at, 16))
            << name << ": " << conversation["name"];
        at += 16;
        ++renderings;
      }
    }
  }
  EXPECT_GE(renderings, 14 * 58);
}

}  // namespace
}  // namespace hydrant::jinja
