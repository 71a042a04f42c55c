// Compilation, refusals, and behaviour of constraints.
#include "engine/text/grammar/grammar_compiler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>
#include <tuple>
#include <utility>

#include "tests/engine/text/grammar/grammar_fixture.h"
#include "tests/sanitized.h"

namespace hydrant {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

std::string Repeated(std::string_view text, int times) {
  std::string out;
  for (int i = 0; i < times; ++i) out += text;
  return out;
}

class Compiler : public GrammarFixture {
 protected:
  bool MayFollow(TokenConstraint* constraint, TokenId id) {
    constraint->FillMask(words_);
    return (words_[id / 32] >> (id % 32) & 1) != 0;
  }

  TokenId TokenOf(const std::string& bytes) const {
    const auto& all = vocabulary_.token_bytes;
    return static_cast<TokenId>(std::find(all.begin(), all.end(), bytes) - all.begin());
  }
};

TEST_F(Compiler, Choice) {
  const Choice choice{{"yes", "no", "say \"\\n\n\x01\"", "\xE4\xB8\x96", ""}};
  for (const std::string& text : choice.texts) EXPECT_TRUE(Admits(choice, text)) << text;
  EXPECT_FALSE(Admits(choice, "y"));
  EXPECT_FALSE(Admits(choice, "maybe"));
  EXPECT_FALSE(Admits(choice, "say \"\n\n\x01\""));
}

// A digit after a control character stays a digit and does not extend the escape.
TEST_F(Compiler, ChoiceOfControlCharacters) {
  for (const char* control : {"\n", "\t", "\r", "\x01", "\x1B", "\x7F"}) {
    for (const char* digit : {"0", "9", "a", "b", "f", "A", "F", "g", ""}) {
      const std::string text = "a" + std::string(control) + digit + digit;
      EXPECT_TRUE(Admits(Choice{{text}}, text)) << digit;
    }
  }
  EXPECT_FALSE(Admits(Choice{{"a\nb"}}, "a\xC2\xAB"));
}

TEST_F(Compiler, RegexIsOfTheWholeText) {
  EXPECT_TRUE(Admits(RegexPattern{"^(a|b)+$"}, "abba"));
  EXPECT_FALSE(Admits(RegexPattern{"a"}, "ba"));
  EXPECT_FALSE(Admits(RegexPattern{"a"}, "ab"));
  EXPECT_TRUE(Admits(RegexPattern{"a.c"},
                     "a\xE4\xB8\x96"
                     "c"));
}

TEST_F(Compiler, RegexEscapes) {
  const std::pair<const char*, const char*> cases[] = {{"\\x41b", "Ab"},
                                                       {"[\\x01a]+", "a\x01"},
                                                       {"[\\u00e9a]+", "a\xC3\xA9"},
                                                       {"\\u00e9a",
                                                        "\xC3\xA9"
                                                        "a"},
                                                       {"\\ud83d\\udc4d", "\xF0\x9F\x91\x8D"},
                                                       {"\\u{1F44D}b",
                                                        "\xF0\x9F\x91\x8D"
                                                        "b"},
                                                       {"[\\d-]+", "1-2"},
                                                       {"[a-\\d]+", "a-7"},
                                                       {"[\\]\\-^\\\\]+", "-]^\\"},
                                                       {"\\cJ", "\n"},
                                                       {"a\\{1}", "a{1}"},
                                                       {"a]}", "a]}"},
                                                       {"[^]", "\n"},
                                                       {"a{0}b", "b"},
                                                       {"(?<one1>a)(?:b|)", "a"},
                                                       {"^a|b$", "b"},
                                                       {"(^a|^b)(c$|d)", "bd"},
                                                       {"\\s", " "},
                                                       {"a+?b*?c??d{2,3}?", "add"}};
  for (const auto& [pattern, text] : cases)
    EXPECT_TRUE(Admits(RegexPattern{pattern}, text)) << pattern;
  EXPECT_FALSE(Admits(RegexPattern{"\\x41b"}, "\xD0\x9B"));
  EXPECT_FALSE(Admits(RegexPattern{"[\\u00e9a]"}, "\xE0\xBA\x9A"));  // U+0E9A
  EXPECT_FALSE(Admits(RegexPattern{"\\S"}, "\xE3\x80\x80"));         // an ideographic space
}

// The library counts repetitions in 32 bits.
TEST_F(Compiler, ManyRepetitionsAreNotFew) {
  for (const StructuredOutput& output :
       {StructuredOutput(RegexPattern{"a{4294967297}"}),
        StructuredOutput(EbnfGrammar{"root ::= \"a\"{4294967297}"}),
        StructuredOutput(JsonSchema{R"({"minLength":-4294967295})"}),
        StructuredOutput(JsonSchema{R"({"minItems":4294967297})"})}) {
    EXPECT_NE(Refusal(output), "");
  }
  EXPECT_TRUE(Admits(JsonSchema{R"({"maxLength":1e10})"}, "\"a\""));
}

// Classes match only valid UTF-8: neither surrogates nor overlong forms.
TEST_F(Compiler, ClassesAdmitNoBrokenUtf8) {
  const RegexPattern other{"[^a-c]"};
  for (const char* text : {"\xE0\xA6\xB8", "\xED\x9F\xBF", "\xF0\x9F\x98\x80", "\xF4\x8F\xBF\xBF"})
    EXPECT_TRUE(Admits(other, text)) << text;
  for (const char* text : {"\xE0\x96\xB8", "\xED\xA0\x80", "\xF0\x8F\x98\x80", "\xF4\x90\x80\x80"})
    EXPECT_FALSE(Admits(other, text)) << text;
}

TEST_F(Compiler, EbnfMayRecur) {
  const EbnfGrammar grammar{"root ::= \"(\" root \")\" | \"x\""};
  EXPECT_TRUE(Admits(grammar, "((x))"));
  EXPECT_FALSE(Admits(grammar, "((x)"));
}

TEST_F(Compiler, AnyJsonObject) {
  EXPECT_TRUE(Admits(AnyJsonObject{}, R"({"a": [1, -2.5e3, true, null, {"b": "\u00e9\n"}]})"));
  EXPECT_FALSE(Admits(AnyJsonObject{}, "[]"));
  EXPECT_FALSE(Admits(AnyJsonObject{}, "{\"a\" 1}"));
}

TEST_F(Compiler, SchemaExcludesUnnamedProperties) {
  const JsonSchema schema{
      R"({"type":"object","properties":{"a":{"type":"integer"},"b":{}},"required":["a"]})"};
  EXPECT_TRUE(Admits(schema, R"({"a": 1})"));
  EXPECT_TRUE(Admits(schema, R"({"a": 1, "b": [{}]})"));
  EXPECT_FALSE(Admits(schema, R"({"b": 1})"));
  EXPECT_FALSE(Admits(schema, R"({"a": 1, "c": 1})"));
  // A schema without members admits any members.
  EXPECT_TRUE(Admits(JsonSchema{R"({"type":"object"})"}, R"({"x": 1})"));
  EXPECT_TRUE(Admits(JsonSchema{R"({"type":"array"})"}, R"([1, "x"])"));
  EXPECT_TRUE(
      Admits(JsonSchema{R"({"properties":{"p":{"type":"object"}}})"}, R"({"p": {"x": 1}})"));
}

TEST_F(Compiler, RecursiveSchema) {
  const JsonSchema schema{R"({"type":"object","properties":{"next":{"$ref":"#"}}})"};
  EXPECT_TRUE(Admits(schema, R"({"next":{"next":{}}})"));
}

TEST_F(Compiler, EndsOfGenerationFollowCompleteTextAlone) {
  const auto constraint = Make(RegexPattern{"a+"});
  EXPECT_EQ(constraint->FillMask(words_), NextTokens::kSome);
  EXPECT_FALSE(MayFollow(constraint.get(), kSmallVocabularyEnd));
  EXPECT_FALSE(constraint->Accept(kSmallVocabularyEnd));
  EXPECT_TRUE(constraint->Accept(TokenOf("aa")));
  EXPECT_TRUE(MayFollow(constraint.get(), kSmallVocabularyEnd));
  EXPECT_TRUE(constraint->Accept(kSmallVocabularyEnd));
  EXPECT_EQ(constraint->FillMask(words_), NextTokens::kEnd);
  EXPECT_FALSE(constraint->Accept('a'));
  EXPECT_FALSE(constraint->Accept(kSmallVocabularyEnd));
}

TEST_F(Compiler, NothingMayFollow) {
  const auto constraint = Make(Choice{{"ab"}});
  EXPECT_TRUE(constraint->Accept(TokenOf("ab")));
  EXPECT_EQ(constraint->FillMask(words_), NextTokens::kEnd);
  EXPECT_TRUE(MayFollow(constraint.get(), kSmallVocabularyEnd));
}

TEST_F(Compiler, SpecialTokensNeverFollow) {
  const auto constraint = Make(RegexPattern{".*"});
  EXPECT_FALSE(MayFollow(constraint.get(), kSmallVocabularySpecial));
  EXPECT_FALSE(constraint->Accept(kSmallVocabularySpecial));
  EXPECT_FALSE(constraint->Accept(1u << 30));
  EXPECT_NE(Refusal(EbnfGrammar{"root ::= Token(256)"}), "");
}

TEST_F(Compiler, TokenThatMayNotFollowChangesNothing) {
  const auto constraint = Make(Choice{{"abc", "abab"}});
  EXPECT_TRUE(constraint->Accept('a'));
  EXPECT_FALSE(constraint->Accept(TokenOf("bb")));  // its first byte would be allowed
  EXPECT_FALSE(constraint->Accept('a'));
  EXPECT_TRUE(constraint->Accept('b'));
  EXPECT_TRUE(MayFollow(constraint.get(), 'c'));
  EXPECT_TRUE(MayFollow(constraint.get(), TokenOf("ab")));
}

TEST_F(Compiler, CharacterOfSeveralTokens) {
  const auto constraint = Make(Choice{{"\xF0\x9F\x91\x8D", "a\xC3\xA9"}});
  EXPECT_TRUE(MayFollow(constraint.get(), TokenOf("a\xC3")));
  EXPECT_TRUE(MayFollow(constraint.get(), 0xF0));
  EXPECT_FALSE(MayFollow(constraint.get(), TokenOf("\x91\x8D")));
  EXPECT_TRUE(constraint->Accept(TokenOf("\xF0\x9F")));
  EXPECT_FALSE(constraint->IsComplete());
  EXPECT_FALSE(MayFollow(constraint.get(), kSmallVocabularyEnd));
  EXPECT_TRUE(constraint->Accept(TokenOf("\x91\x8D")));
  EXPECT_TRUE(constraint->IsComplete());
}

TEST_F(Compiler, EndWithoutIds) {
  GrammarVocabulary vocabulary{{"a", "b", ""}, {}};
  const auto compiler = GrammarCompiler::Create(vocabulary, GrammarLimits());
  ASSERT_TRUE(compiler.ok());
  const auto compiled = (*compiler)->Compile(Choice{{"ab"}});
  ASSERT_TRUE(compiled.ok()) << compiled.status();
  const auto constraint = (*compiled)->NewConstraint();
  std::vector<uint32_t> words((*compiler)->MaskWords());
  EXPECT_TRUE(constraint->Accept(0));
  EXPECT_TRUE(constraint->Accept(1));
  EXPECT_EQ(constraint->FillMask(words), NextTokens::kEnd);
  EXPECT_EQ(words[0], 0u);
}

TEST_F(Compiler, TextThatTheVocabularyCannotSpell) {
  GrammarVocabulary vocabulary{{"a", "b", ""}, {2}};
  const auto compiler = GrammarCompiler::Create(vocabulary, GrammarLimits());
  ASSERT_TRUE(compiler.ok());
  EXPECT_THAT(std::string((*compiler)->Compile(Choice{{"x"}}).status().message()),
              AllOf(StartsWith("choice: "), HasSubstr("no text of the model's tokens")));
  // Detected during decoding.
  const auto compiled = (*compiler)->Compile(Choice{{"ax", "bx"}});
  ASSERT_TRUE(compiled.ok()) << compiled.status();
  const auto constraint = (*compiled)->NewConstraint();
  std::vector<uint32_t> words((*compiler)->MaskWords());
  EXPECT_TRUE(constraint->Accept(0));
  EXPECT_EQ(constraint->FillMask(words), NextTokens::kNone);
}

TEST_F(Compiler, RefusesTextByFieldAndLimit) {
  EXPECT_THAT(Refusal(RegexPattern{Repeated("a", 70000)}),
              AllOf(StartsWith("regex: "), HasSubstr("70000 bytes, at most 8192")));
  EXPECT_THAT(Refusal(Choice{}), StartsWith("choice: is empty"));
  EXPECT_THAT(Refusal(Choice{std::vector<std::string>(40000, "a")}),
              AllOf(StartsWith("choice: "), HasSubstr("65536")));
  EXPECT_THAT(Refusal(RegexPattern{"a\xFF"}), AllOf(StartsWith("regex: "), HasSubstr("UTF-8")));
  EXPECT_THAT(Refusal(EbnfGrammar{std::string("root ::= \"a\0\"", 13)}), HasSubstr("null"));
  EXPECT_THAT(Refusal(EbnfGrammar{"x ::= \"a\""}),
              AllOf(StartsWith("grammar: "), HasSubstr("'root'")));
  EXPECT_THAT(Refusal(EbnfGrammar{Repeated("a", 20000)}),
              AllOf(StartsWith("grammar: "), HasSubstr("at most 16384")));
  EXPECT_THAT(Refusal(JsonSchema{R"({"pattern":")" + Repeated("a", 9000) + "\"}"}),
              HasSubstr("'pattern' has 9000 bytes, at most 8192"));
  EXPECT_THAT(Refusal(JsonSchema{"{"}), StartsWith("json_schema: not valid JSON"));
  EXPECT_THAT(Refusal(JsonSchema{Repeated("[", 100)}), HasSubstr("deeper than 64"));
}

TEST_F(Compiler, RefusesPatternsItWouldNotKeepTo) {
  for (const char* pattern :
       {"(",       "a)",     "[",       "a{2",      "a{3,2}", "a**",     "(?=a)b", "(?<!a)b",
        "\\bword", "(a)\\1", "\\p{L}",  "[\\p{L}]", "a^b",    "a$b",     "\\q",    "(?i)a",
        "*a",      "^*",     "[b-a]",   "[]",       "\\x4",   "\\u12g4", "\\",     "\\ud83d",
        "a{,3}",   "a{b}",   "(?<1>a)", "a++",      "\\01"}) {
    EXPECT_THAT(Refusal(RegexPattern{pattern}),
                AllOf(StartsWith("regex: character "), Not(HasSubstr("gnor"))))
        << pattern;
  }
}

// As gateways write it for tools of which one must be called.
TEST_F(Compiler, ATypeBesideSchemasIsEachOnes) {
  const JsonSchema calls{R"({"type":"array","minItems":1,"items":{"type":"object","anyOf":[
      {"properties":{"name":{"const":"a"},"x":{"type":"integer"}},"required":["name","x"]},
      {"type":"object","properties":{"name":{"const":"b"}},"required":["name"]}]}})"};
  EXPECT_TRUE(Admits(calls, R"([{"name": "a", "x": 1}, {"name": "b"}])"));
  EXPECT_FALSE(Admits(calls, R"([{"name": "a"}])"));
  EXPECT_FALSE(Admits(calls, "[]"));
  EXPECT_FALSE(Admits(calls, R"(["a"])"));
  EXPECT_THAT(Refusal(JsonSchema{R"({"type":"object","anyOf":[{"type":"string"}]})"}),
              HasSubstr("'type' beside 'anyOf'"));
  EXPECT_THAT(
      Refusal(JsonSchema{R"({"type":"object","anyOf":[{"$ref":"#/$defs/a"}],"$defs":{"a":{}}})"}),
      HasSubstr("beside a '$ref'"));
}

TEST_F(Compiler, RefusesSchemasItWouldNotKeepTo) {
  const std::pair<const char*, const char*> cases[] = {
      {"false", "admits nothing"},
      {"3", "neither an object nor a boolean"},
      {R"({"not":{}})", "'not'"},
      {R"({"properties":{"a":{"if":{}}}})", "'/properties/a' 'if'"},
      {R"({"type":"array","uniqueItems":true})", "'uniqueItems'"},
      {R"({"type":"array","contains":{}})", "'contains'"},
      {R"({"type":"object","patternProperties":{}})", "'patternProperties'"},
      {R"({"type":"object","minProperties":1})", "'minProperties'"},
      {R"({"anyOf":[{"type":"string"}],"maxLength":3})", "'maxLength' beside 'anyOf'"},
      {R"({"$ref":"#/$defs/a","$defs":{"a":{}},"minimum":1})", "beside '$ref'"},
      {R"({"$ref":"http://example.com/a"})", "the schema '$ref' does not begin with '#/'"},
      {R"({"$ref":"#/$defs/b"})", "'$ref' names '#/$defs/b', which is not in the schema"},
      {R"({"$ref":"#/$defs/~2","$defs":{"~2":{}}})", "'$ref' has a '~'"},
      {R"({"$ref":"#/$defs/%2","$defs":{"%2":{}}})", "'$ref' has a '%'"},
      {R"({"items":{"$ref":"#/$defs/a"},"$defs":{"a":{"properties":{"x/y":{"not":{}}}}}})",
       "'/$defs/a/properties/x~1y' 'not'"},
      {R"({"items":{"$ref":"#/a"},"a":{"type":"object","minProperties":1}})",
       "'/a' 'minProperties'"},
      {R"({"allOf":[{},{}]})", "'allOf'"},
      {R"({"properties":{"a":{"oneOf":[{"type":"integer"},{"type":"number"}]}}})",
       "'/properties/a' 'oneOf' has schemas that one value may be of, 0 and 1"},
      {R"({"oneOf":[{"const":1},{"enum":["a",1.0]}]})", "'oneOf'"},
      {R"({"oneOf":[{"properties":{"k":{"const":1}}},{"properties":{"k":{"const":2}}}]})",
       "'oneOf'"},
      {R"({"properties":{"é":{}},"additionalProperties":{"type":"null"}})", "not ASCII"},
      {R"({"properties":{"é":{}},"additionalProperties":true})", "not ASCII"},
      {R"({"enum":[]})", "'enum'"},
      {R"({"const":18446744073709551615})", "'const' has an integer above"},
      {R"({"enum":["a"],"type":"integer"})", "not of 'type'"},
      {R"({"type":"text"})", "'type'"},
      {R"({"minLength":1,"minimum":1})", "several types"},
      {R"({"required":["a"]})", "'required' names 'a'"},
      {R"({"properties":{"a":{"minLength":3,"maxLength":2}}})",
       "'/properties/a' 'minLength' is above 'maxLength'"},
      {R"({"type":"string","minLength":-1})", "'minLength' is no whole number"},
      {R"({"type":"string","maxLength":"3"})", "'maxLength' is no whole number"},
      {R"({"type":"string","minLength":3,"pattern":"a"})", "'minLength' beside 'pattern'"},
      {R"({"type":"string","maxLength":3,"format":"date"})", "'maxLength' beside 'format'"},
      {R"({"type":"string","format":"date","pattern":"^2"})", "'pattern' beside 'format'"},
      {R"({"items":{"type":"string","pattern":"(?=a)b"}})",
       "'/items' 'pattern' character 1: look-around"},
      {R"({"pattern":"a\"b"})", "'pattern' matches no text of a JSON string"},
      {R"({"pattern":"a^b"})", "'pattern' character 2: '^'"},
      {R"({"properties":{"a":{"pattern":"^a{200000}$"}}})",
       "'/properties/a' 'pattern' is too complex"},
      {R"({"items":{"type":"number","multipleOf":0.5}})", "'/items' 'multipleOf'"},
      {R"({"type":"integer","multipleOf":0.5})", "'multipleOf' is no whole number from 1 to 1024"},
      {R"({"type":"integer","multipleOf":3,"minimum":0})", "'multipleOf' beside a bound"},
      {R"({"type":"integer","multipleOf":5,"minimum":1,"maximum":4})", "'multipleOf' has no"},
      {R"({"items":{"type":"integer","minimum":3,"maximum":2}})", "'/items' 'minimum'"},
      {R"({"type":"integer","minimum":1.1,"exclusiveMaximum":2})", "'minimum'"},
      {R"({"type":"number","exclusiveMinimum":2,"maximum":2})", "'exclusiveMinimum'"},
      {R"({"type":"number","exclusiveMinimum":true})", "'exclusiveMinimum' is a boolean"},
      {R"({"type":"number","minimum":"1"})", "'minimum' is no number"},
      {R"({"type":"array","minItems":2,"maxItems":1})", "'minItems' is above 'maxItems'"},
      {R"({"type":"array","minItems":2,"prefixItems":[{}]})", "'minItems' is above the 1 items"},
      {R"({"type":"array","items":[{}]})", "'items' is a list"},
      {R"({"prefixItems":[false]})", "'/prefixItems/0' false"},
      {R"({"$ref":"#"})", "no text"},
      {R"({"$defs":{"a":{"$ref":"#/$defs/a"}},"$ref":"#/$defs/a"})", "no text"},
      {R"({"type":"string","format":5})", "'format' is no string"},
      {R"({"a":1,"a":2})", "twice"},
  };
  for (const auto& [schema, part] : cases) {
    EXPECT_THAT(Refusal(JsonSchema{schema}),
                AllOf(StartsWith("json_schema: "), HasSubstr(part), Not(HasSubstr("gnor")),
                      Not(HasSubstr("falling"))))
        << schema;
  }
}

TEST_F(Compiler, ReferencesHaveEscapes) {
  const char* const definitions =
      R"("$defs":{"a/b":{"type":"integer"},"a b":{"type":"null"},"a~b":{"enum":["x"]},"é":[{"const":7}]}})";
  const std::pair<const char*, const char*> cases[] = {
      {"#/$defs/a~1b", "12"},      {"#/$defs/a%20b", "null"},   {"#/$defs/a b", "null"},
      {"#/%24defs/a~0b", "\"x\""}, {"#/$defs/a%7E0b", "\"x\""}, {"#/$defs/%C3%A9/0", "7"}};
  for (const auto& [reference, text] : cases) {
    const JsonSchema schema{std::string(R"({"$ref":")") + reference + "\"," + definitions};
    EXPECT_TRUE(Admits(schema, text)) << reference;
    EXPECT_FALSE(Admits(schema, "true")) << reference;
  }
}

// A pattern without anchors matches any part of a text.
TEST_F(Compiler, PatternsOfSchemasAreSearchedFor) {
  const std::tuple<const char*, const char*, const char*> cases[] = {
      {"b", "\"abc\"", "\"ac\""},
      {"^b", "\"bc\"", "\"ab\""},
      {"b$", "\"ab\"", "\"ba\""},
      {"^b$", "\"b\"", "\"bb\""},
      {"^a|b$", "\"axx\"", "\"xa\""},
      {"^a|b$", "\"xb\"", "\"bx\""},
      {"(^|x)a", "\"yxa\"", "\"ya\""},
      {"", "\"any\"", "1"},
      {"^$", "\"\"", "\"a\""},
      {"^", "\"any\"", "1"},
      {"(^a|^b)(c|d$)", "\"bcx\"", "\"bdx\""}};
  for (const auto& [pattern, text, other] : cases) {
    const JsonSchema schema{std::string(R"({"type":"string","pattern":")") + pattern + "\"}"};
    EXPECT_TRUE(Admits(schema, text)) << pattern;
    EXPECT_FALSE(Admits(schema, other)) << pattern;
  }
}

TEST_F(Compiler, WhiteSpaceOfJsonEnds) {
  const std::string blanks(kDefaultMaxWhitespace, ' ');
  for (const StructuredOutput& output :
       {StructuredOutput(AnyJsonObject{}), StructuredOutput(JsonSchema{R"({"type":"object"})"})}) {
    EXPECT_TRUE(Admits(output, "{\"a\"" + blanks + ":" + blanks + "[1, \"" + blanks + blanks +
                                   "\\\"" + blanks + blanks + "\"]}"));
    EXPECT_FALSE(Admits(output, "{\"a\"" + blanks + " :1}"));
    EXPECT_FALSE(Admits(output, "{\n" + blanks + "\"a\":1}"));
  }
  // The mask excludes it too.
  const auto constraint = Make(AnyJsonObject{.max_whitespace = 2});
  for (const char c : std::string_view("{ \n")) constraint->Accept(static_cast<unsigned char>(c));
  EXPECT_FALSE(MayFollow(constraint.get(), ' '));
  EXPECT_FALSE(MayFollow(constraint.get(), TokenOf(" \n")));
  EXPECT_TRUE(MayFollow(constraint.get(), '"'));
}

TEST_F(Compiler, WhiteSpaceOfJsonMayBeNone) {
  const AnyJsonObject object{.max_whitespace = 0};
  EXPECT_TRUE(Admits(object, R"({"a b":[1,{"b":null},[]],"c":{}})"));
  const JsonSchema schema{R"({"properties":{"a":{"type":"array"},"b":{}}})", 0};
  EXPECT_TRUE(Admits(schema, R"({"a":[1,[2,3]],"b":{"c":" "}})"));
  for (const char* text : {R"({"a": []})", R"({ "a":[]})", R"({"a":[] })", R"({"a":[1, 2]})",
                           R"({"b":[1, 2]})", R"({"b":{"c": 1}})"}) {
    EXPECT_FALSE(Admits(object, text)) << text;
    EXPECT_FALSE(Admits(schema, text)) << text;
  }
}

TEST_F(Compiler, BoundsOfIntegers) {
  const JsonSchema fractions{R"({"type":["integer","null"],"minimum":-1.5,"exclusiveMaximum":3})"};
  for (const char* text : {"-1", "0", "2", "null"}) EXPECT_TRUE(Admits(fractions, text)) << text;
  for (const char* text : {"-2", "3"}) EXPECT_FALSE(Admits(fractions, text)) << text;
  const JsonSchema unsigned_64{R"({"type":"integer","minimum":0,"maximum":18446744073709551615})"};
  EXPECT_TRUE(Admits(unsigned_64, "9223372036854775807"));
  EXPECT_FALSE(Admits(unsigned_64, "-1"));
}

TEST_F(Compiler, OneOfDisjointSchemasIsAnyOf) {
  const JsonSchema kinds{R"({"oneOf":[{"$ref":"#/$defs/a"},
      {"type":"object","properties":{"kind":{"const":"b"}},"required":["kind"]},{"type":"null"}],
      "$defs":{"a":{"type":"object","properties":{"kind":{"enum":["a","c"]},"x":{}},"required":["kind"]}}})"};
  for (const char* text : {R"({"kind": "a", "x": 1})", R"({"kind": "b"})", "null"})
    EXPECT_TRUE(Admits(kinds, text)) << text;
  EXPECT_FALSE(Admits(kinds, R"({"kind": "b", "x": 1})"));
}

TEST_F(Compiler, TuplesOfSchemas) {
  const JsonSchema pair{R"({"prefixItems":[true,{"type":"integer"},{}],"maxItems":2})"};
  EXPECT_TRUE(Admits(pair, R"(["a", 1])"));
  EXPECT_FALSE(Admits(pair, R"(["a", 1, 2])"));
  EXPECT_FALSE(Admits(pair, R"([1, "a"])"));
}

// Without bounds each of these costs the library minutes, gigabytes or the process.
TEST_F(Compiler, HostileInputsEnd) {
  if (kThreadSanitizer)
    GTEST_SKIP() << "takes a quarter of an hour, in the library alone and on one thread";
  std::string halves = "root ::= r0\n";
  for (int i = 0; i < 40; ++i) {
    const std::string next = "r" + std::to_string(i + 1);
    halves += "r" + std::to_string(i) + " ::= " + next + " " + next + " | \"\"\n";
  }
  halves += "r40 ::= \"a\" | \"\"\n";
  std::string optional = R"({"type":"object","properties":{)";
  for (int i = 0; i < 2000; ++i) {
    optional +=
        (i > 0 ? ",\"p" : "\"p") + std::to_string(i) + R"(":{"type":"integer","multipleOf":1023})";
  }
  const StructuredOutput cases[] = {
      RegexPattern{"a{1,1000000}"},
      RegexPattern{".{1000000}"},
      RegexPattern{"(((.{1,127}){1,127}){1,127}){1,127}"},
      RegexPattern{"(((.{1000}){1000}){1000}){1000}"},
      RegexPattern{Repeated("(", 4000) + "a" + Repeated(")", 4000)},
      RegexPattern{Repeated("a?", 4000)},
      RegexPattern{Repeated(".*", 4000)},
      RegexPattern{Repeated("[^a]", 2000)},
      RegexPattern{"(.*)*(.*)*(.*)*x"},
      EbnfGrammar{"root ::= " + Repeated("a? ", 5000) + "\na ::= \"a\""},
      JsonSchema{R"({"pattern":")" + Repeated("a?", 4000) + "\"}"},
      JsonSchema{R"({"pattern":")" + Repeated(".*", 4000) + "\"}"},
      JsonSchema{R"({"pattern":"(a|b)*a(a|b){60}"})"},
      RegexPattern{"(a|b)*a(a|b){1000}"},
      RegexPattern{"a{99999999999999999999}"},
      EbnfGrammar{halves},
      EbnfGrammar{"root ::= ([a-z]+ | [a-z]* [a-z]*)*"},
      EbnfGrammar{"root ::= root root root | \"a\" | \"\""},
      EbnfGrammar{"root ::= " + Repeated("(", 8000) + "\"a\"" + Repeated(")", 8000)},
      EbnfGrammar{"root ::= ((((\"a\"{1,100}){1,100}){1,100}){1,100}){1,100}"},
      JsonSchema{optional + "}}"},
      JsonSchema{R"({"type":"string","minLength":2147483647})"},
      JsonSchema{
          R"({"type":"array","items":{"type":"array","minItems":100000},"minItems":100000})"},
      JsonSchema{R"({"type":"string","pattern":"((.{1,1000}){1,1000}){1,1000}"})"},
      JsonSchema{R"({"type":"string","pattern":")" + Repeated("(", 30000) + "a" +
                 Repeated(")", 30000) + "\"}"},
      JsonSchema{R"({"type":"number","minimum":-1e308,"maximum":1e308})"},
  };
  for (const StructuredOutput& output : cases) {
    const auto compiled = compiler_->Compile(output);
    EXPECT_TRUE(compiled.ok() || absl::IsInvalidArgument(compiled.status())) << compiled.status();
    if (!compiled.ok()) continue;
    EXPECT_LT((*compiled)->MemoryBytes(), size_t{256} << 20);
    // A compiled grammar must also be fast to follow.
    const auto constraint = (*compiled)->NewConstraint();
    for (int i = 0; i < 300; ++i) {
      if (constraint->FillMask(words_) != NextTokens::kSome) break;
      if (!constraint->Accept('a') && !constraint->Accept('[') && !constraint->Accept('"')) break;
    }
  }
}

TEST_F(Compiler, AmbiguityEndsTheText) {
  const auto constraint = Make(EbnfGrammar{"root ::= s\ns ::= s s s | \"a\" | \"b\" | \"\""});
  NextTokens next = NextTokens::kSome;
  int length = 0;
  for (; length < 10000 && next == NextTokens::kSome; ++length) {
    next = constraint->FillMask(words_);
    if (next == NextTokens::kSome) constraint->Accept('a');
  }
  EXPECT_EQ(next, NextTokens::kTooCostly);
  EXPECT_LT(length, 10000);
  EXPECT_FALSE(constraint->IsComplete());
  EXPECT_FALSE(constraint->Accept('a'));
}

TEST_F(Compiler, CachesCompiledGrammars) {
  const auto first = compiler_->Compile(RegexPattern{"a+"});
  const auto second = compiler_->Compile(RegexPattern{"a+"});
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_EQ(first->get(), second->get());
  // The same text in another language is another grammar.
  const auto other = compiler_->Compile(Choice{{"a+"}});
  ASSERT_TRUE(other.ok());
  EXPECT_NE(other->get(), first->get());
}

TEST_F(Compiler, EvictsUnusedGrammars) {
  GrammarLimits limits;
  limits.cached_bytes = 8000;
  const auto compiler = GrammarCompiler::Create(vocabulary_, limits);
  ASSERT_TRUE(compiler.ok());
  const auto first = (*compiler)->Compile(RegexPattern{"a0"});
  for (int i = 1; i < 100; ++i) {
    ASSERT_TRUE((*compiler)->Compile(RegexPattern{"a" + std::to_string(i)}).ok());
  }
  const auto again = (*compiler)->Compile(RegexPattern{"a0"});
  ASSERT_TRUE(first.ok() && again.ok());
  EXPECT_NE(first->get(), again->get());
}

TEST_F(Compiler, AnyThreadMayCompile) {
  constexpr int kThreads = 4;
  std::vector<std::thread> threads;
  threads.reserve(kThreads);
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      std::vector<uint32_t> words(compiler_->MaskWords());
      for (int i = 0; i < 20; ++i) {
        const auto compiled =
            compiler_->Compile(RegexPattern{"a{" + std::to_string((i + t) % 7) + "}b"});
        ASSERT_TRUE(compiled.ok());
        const auto constraint = (*compiled)->NewConstraint();
        EXPECT_EQ(constraint->FillMask(words), NextTokens::kSome);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST_F(Compiler, GrammarOutlivesItsCompiler) {
  const auto compiled = compiler_->Compile(Choice{{"ab"}});
  ASSERT_TRUE(compiled.ok());
  compiler_.reset();
  const auto constraint = (*compiled)->NewConstraint();
  EXPECT_EQ(constraint->FillMask(words_), NextTokens::kSome);
}

TEST(CreateCompiler, RefusesEndsWithText) {
  EXPECT_TRUE(absl::IsInvalidArgument(
      GrammarCompiler::Create({{"a", "b"}, {1}}, GrammarLimits()).status()));
  EXPECT_TRUE(
      absl::IsInvalidArgument(GrammarCompiler::Create({{"a", ""}, {2}}, GrammarLimits()).status()));
}

}  // namespace
}  // namespace hydrant
