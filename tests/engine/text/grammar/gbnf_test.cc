// Grammars in GBNF, with the features in llama.cpp's documentation of the language.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <utility>

#include "tests/engine/text/grammar/grammar_fixture.h"

namespace hydrant {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

class Gbnf : public GrammarFixture {
 protected:
  bool Follows(const std::string& grammar, std::string_view text) {
    return Admits(EbnfGrammar{grammar}, text);
  }
};

TEST_F(Gbnf, EscapesHaveSoManyDigits) {
  EXPECT_TRUE(Follows(R"(root ::= "\x41b")", "Ab"));
  EXPECT_FALSE(Follows(R"(root ::= "\x41b")", "\xD0\x9B"));
  EXPECT_TRUE(Follows(R"(root ::= "\x0a1\t\r\n\\\"\[\]")", "\n1\t\r\n\\\"[]"));
  EXPECT_TRUE(Follows(R"(root ::= "\u00e9a\U0001F44Db")",
                      "\xC3\xA9"
                      "a\xF0\x9F\x91\x8D"
                      "b"));
  EXPECT_TRUE(Follows(R"(root ::= [\x41b]+)", "AbbA"));
  EXPECT_TRUE(Follows(R"(root ::= [^"\\\x7F\x00-\x1F]*)", "a b"));
  EXPECT_FALSE(Follows(R"(root ::= [^"\\\x7F\x00-\x1F]*)", "a\nb"));
  EXPECT_FALSE(Follows(R"(root ::= [^"\\\x7F\x00-\x1F]*)", "a\\b"));
}

TEST_F(Gbnf, Classes) {
  EXPECT_TRUE(Follows(R"(root ::= [-+*/]+ [a-c-] [\]^\-\[])", "-+*/-^"));
  EXPECT_TRUE(Follows(R"(root ::= [ \t\n]+ "#" # the rest)", " \n\t#"));
  EXPECT_TRUE(Follows("root ::= [\xE3\x81\x81-\xE3\x82\x9F]+", "\xE3\x81\xAA"));
  EXPECT_FALSE(Follows("root ::= [\xE3\x81\x81-\xE3\x82\x9F]+", "\xE3\x82\xA1"));
  EXPECT_TRUE(Follows("root ::= [^a\n]", "b"));
}

TEST_F(Gbnf, EmptyAlternatives) {
  for (const char* grammar : {"root ::= (\"a\" | )", "root ::= ( | \"a\")", "root ::= \"a\" |",
                              "root ::= | \"a\"", "root ::= \"\" | \"a\"", "root ::= (\"a\" | ())",
                              "root ::= x\nx ::=\n  | \"a\"", "root ::= y (\"a\" |)\ny ::="}) {
    EXPECT_TRUE(Follows(grammar, "")) << grammar;
    EXPECT_TRUE(Follows(grammar, "a")) << grammar;
    EXPECT_FALSE(Follows(grammar, "aa")) << grammar;
  }
}

TEST_F(Gbnf, AnyCharacter) {
  EXPECT_TRUE(Follows("root ::= \"a\" . \"c\"", "abc"));
  EXPECT_TRUE(Follows("root ::= a.b\na ::= \"a\"\nb ::= \"b\"", "a\nb"));
  EXPECT_TRUE(Follows("root ::= .*", "\xF0\x9F\x91\x8D x"));
  EXPECT_FALSE(Follows("root ::= .", "ab"));
}

TEST_F(Gbnf, Repetitions) {
  const std::string grammar = "root ::= \"ab\"{2} [0-9]{1, } ( \"x\" | \"y\" ){ 0 , 2 } \"z\"{0}";
  EXPECT_TRUE(Follows(grammar, "abab0"));
  EXPECT_TRUE(Follows(grammar, "abab012yx"));
  EXPECT_FALSE(Follows(grammar, "ab0"));
  EXPECT_FALSE(Follows(grammar, "abab0yxy"));
  EXPECT_FALSE(Follows(grammar, "abab0z"));
  EXPECT_TRUE(Follows("root ::= (\"a\"?){3} b+\nb ::= \"b\"", "abb"));
}

// Rule names with a meaning in the grammar library, or invalid there.
TEST_F(Gbnf, NamesOfRules) {
  EXPECT_TRUE(
      Follows("root ::= Token true Regex 1st-of_all\nToken ::= \"a\"\ntrue ::= \"b\"\n"
              "Regex ::= \"c\"\n1st-of_all ::= \"d\"",
              "abcd"));
  EXPECT_TRUE(Follows("r1 ::= \"a\"\r\nroot ::= r0 r1\r\nr0::=\"b\"", "ba"));
}

// Grammars of the kinds shipped with llama.cpp: lists, arithmetic, JSON, moves, a language.
TEST_F(Gbnf, GrammarsOfUse) {
  const std::string list =
      "root ::= item+\n\n# an item a line\nitem ::= \"- \" [^\\r\\n\\x0b\\x0c"
      "\\x85\\u2028\\u2029]+ \"\\n\"";
  EXPECT_TRUE(Follows(list, "- a\n- b c\n"));
  EXPECT_FALSE(Follows(list, "- a"));
  const std::string sums =
      "root ::= (expr \"=\" ws term \"\\n\")+\nexpr ::= term ([-+*/] term)*\n"
      "term ::= ident | num | \"(\" ws expr \")\" ws\nident ::= [a-z] [a-z0-9_]* ws\n"
      "num ::= [0-9]+ ws\nws ::= [ \\t\\n]*\n";
  EXPECT_TRUE(Follows(sums, "x1 +(2*y) = 7\n"));
  EXPECT_FALSE(Follows(sums, "x + = 7\n"));
  const std::string json =
      "root ::= object\nvalue ::= object | array | string | number | (\"true\" | \"null\") ws\n"
      "object ::=\n  \"{\" ws (\n            string \":\" ws value\n    (\",\" ws string \":\" ws "
      "value)*\n"
      "  )? \"}\" ws\n\narray ::= \"[\" ws ( value (\",\" ws value)* )? \"]\" ws\n"
      "string ::=\n  \"\\\"\" (\n    [^\"\\\\\\x7F\\x00-\\x1F] |\n    \"\\\\\" ([\"\\\\bfnrt] | "
      "\"u\" "
      "[0-9a-fA-F]{4}) # escapes\n  )* \"\\\"\" ws\n"
      "number ::= (\"-\"? ([0-9] | [1-9] [0-9]{0,15})) (\".\" [0-9]+)? ([eE] [-+]? [0-9] "
      "[1-9]{0,15})? ws\nws ::= | \" \" | \"\\n\" [ \\t]{0,20}\n";
  EXPECT_TRUE(Follows(json, "{\"a\": [1, -2.5e3, \"\\u00e9\\n\"],\n  \"b\":{}}"));
  EXPECT_FALSE(Follows(json, "{\"a\":   1}"));
  const std::string moves =
      "root ::= \"1. \" move \" \" move \"\\n\" ([1-9] [0-9]? \". \" move \" \" "
      "move \"\\n\")+\nmove ::= (pawn | piece | castle) [+#]?\n"
      "piece ::= [NBKQR] [a-h]? [1-8]? \"x\"? [a-h] [1-8]\n"
      "pawn ::= ([a-h] \"x\")? [a-h] [1-8] (\"=\" [NBKQR])?\n"
      "castle ::= \"O-O\" \"-O\"?";
  EXPECT_TRUE(Follows(moves, "1. e4 e5\n2. Nf3 O-O\n"));
  EXPECT_FALSE(Follows(moves, "1. e4 e9\n2. Nf3 O-O\n"));
}

TEST_F(Gbnf, ErrorsSayWhere) {
  const std::pair<const char*, const char*> cases[] = {
      {"root ::= \"a\"\n  other", "line 2, column 3: there is no rule 'other'"},
      {"root ::= \"a", "line 1, column 10: the text has no end"},
      {"root ::= [a", "line 1, column 10: the class has no end"},
      {"root ::= [b-a]", "line 1, column 14: the range ends"},
      {"root ::= []", "line 1, column 10: the class has no character"},
      {"root ::= (\"a\"", "line 1, column 10: '(' has no ')'"},
      {"root ::= \"a\")", "line 1, column 13: ')' has no '('"},
      {"root ::= \"\\x4g\"", "line 1, column 11: the escape is not of 2"},
      {"root ::= \"\\ud800\"", "line 1, column 11: the escape is no character"},
      {"root ::= \"\\q\"", "line 1, column 11: the backslash"},
      {"root ::= * \"a\"", "line 1, column 10: there is nothing to repeat"},
      {"root ::= \"a\"{,3}", "line 1, column 14: a repetition is"},
      {"root ::= \"a\"{3,2}", "line 1, column 13: the repetition ends"},
      {"root ::= \"a\"{99999999999}", "more than 1000000000 repetitions"},
      {"root ::= \"a\"\nroot ::= \"b\"", "line 2, column 1: the rule 'root' is there twice"},
      {"root ::= a b ::= \"x\"", "line 1, column 12: a rule begins in a line of its own"},
      {"\"a\"", "'root'"},
      {"\"a\"\nroot ::= \"b\"", "line 1, column 1: a rule begins with its name"},
      {"root ::= ::= \"b\"", "line 1, column 10: '::=' stands behind no name"},
      {"root ::= \"\xC3\xA9\" <think>", "line 1, column 14: tokens"},
      {"root ::= \"a\" = \"b\"", "line 1, column 14: '=' begins nothing"},
      {"", "'root'"},
  };
  for (const auto& [grammar, part] : cases) {
    const std::string refusal = Refusal(EbnfGrammar{grammar});
    EXPECT_THAT(refusal, StartsWith("grammar: ")) << grammar;
    EXPECT_THAT(refusal, HasSubstr(part)) << grammar;
  }
}

}  // namespace
}  // namespace hydrant
