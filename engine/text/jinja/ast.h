// The syntax tree of a template, built by the parser and walked by the evaluator. Immutable once
// built, so any number of threads may walk it.
#ifndef HYDRANT_ENGINE_TEXT_JINJA_AST_H_
#define HYDRANT_ENGINE_TEXT_JINJA_AST_H_

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "engine/text/jinja/operators.h"
#include "engine/text/jinja/value.h"

namespace hydrant::jinja {

struct Expression;
using ExpressionPtr = std::unique_ptr<Expression>;

struct Constant {
  Value value;
};
struct Name {
  std::string name;
};
struct ListLiteral {
  std::vector<ExpressionPtr> items;
};
struct TupleLiteral {
  std::vector<ExpressionPtr> items;
};
struct DictLiteral {
  std::vector<std::pair<ExpressionPtr, ExpressionPtr>> entries;
};
struct Attribute {  // object.name
  ExpressionPtr object;
  std::string name;
};
struct Subscript {  // object[index]
  ExpressionPtr object, index;
};
struct SliceSubscript {  // object[start:stop:step]; null: omitted
  ExpressionPtr object, start, stop, step;
};

// Positional, then `name=value`, then *sequence and **dict if present.
struct CallArguments {
  std::vector<ExpressionPtr> positional;
  std::vector<std::pair<std::string, ExpressionPtr>> keywords;
  ExpressionPtr sequence, dict;
};
struct CallExpression {
  ExpressionPtr callee;
  CallArguments arguments;
};
struct FilterExpression {
  ExpressionPtr input;  // null in a filter block: its text
  std::string name;
  CallArguments arguments;
};
struct TestExpression {
  ExpressionPtr input;
  std::string name;
  CallArguments arguments;
};

struct UnaryExpression {
  enum class Kind { kNot, kMinus, kPlus } kind;
  ExpressionPtr operand;
};
struct BinaryExpression {
  Operator op;
  ExpressionPtr left, right;
};
struct LogicalExpression {
  bool is_and;
  ExpressionPtr left, right;
};
struct Concatenation {  // a ~ b ~ c
  std::vector<ExpressionPtr> parts;
};
struct Comparison {  // a < b <= c
  enum class Kind { kCompare, kIn, kNotIn };
  struct Part {
    Kind kind;
    Comparator comparator;  // of kCompare
    ExpressionPtr right;
  };
  ExpressionPtr left;
  std::vector<Part> parts;
};
struct Conditional {                 // yes if condition else no
  ExpressionPtr condition, yes, no;  // `no` may be null
};

struct Expression {
  int line;
  int height;  // of the tree; 1: a leaf
  std::variant<Constant, Name, ListLiteral, TupleLiteral, DictLiteral, Attribute, Subscript,
               SliceSubscript, CallExpression, FilterExpression, TestExpression, UnaryExpression,
               BinaryExpression, LogicalExpression, Concatenation, Comparison, Conditional>
      node;
};

// Left side of `set`, `for` and `with`: a name, an attribute of a namespace, or a tuple of targets.
struct Target {
  std::string name;
  std::string attribute;      // of the namespace `name`; else ""
  std::vector<Target> items;  // of a tuple, which has no name
};

struct Statement;
using Body = std::vector<Statement>;

struct TextOutput {
  Value text;  // a string
};
struct Output {
  ExpressionPtr expression;
};
struct IfStatement {
  std::vector<std::pair<ExpressionPtr, Body>> branches;
  Body otherwise;
};
struct ForStatement {
  Target target;
  ExpressionPtr items;
  ExpressionPtr condition;  // may be null
  Body body, otherwise;
};
struct SetStatement {
  Target target;
  ExpressionPtr value;
};
struct SetBlock {
  Target target;
  ExpressionPtr filter;  // a chain of filters over the text, or null
  Body body;
};
struct WithStatement {
  std::vector<std::pair<Target, ExpressionPtr>> variables;
  Body body;
};
struct FilterBlock {
  ExpressionPtr filter;
  Body body;
};
// A macro, or the body of a call block, passed as `caller`.
struct MacroDefinition {
  std::string name;  // "caller" of a call block
  std::vector<std::string> parameters;
  std::vector<ExpressionPtr> defaults;  // of the last parameters
  Body body;
  bool uses_caller = false, uses_varargs = false, uses_kwargs = false;  // the body names them
};
struct MacroStatement {
  std::shared_ptr<const MacroDefinition> macro;
};
struct CallBlock {
  ExpressionPtr call;  // a CallExpression
  std::shared_ptr<const MacroDefinition> caller;
};
struct GenerationBlock {  // transformers' tag around assistant text; renders its body
  Body body;
};
struct BreakStatement {};
struct ContinueStatement {};

struct Statement {
  int line;
  std::variant<TextOutput, Output, IfStatement, ForStatement, SetStatement, SetBlock, WithStatement,
               FilterBlock, MacroStatement, CallBlock, GenerationBlock, BreakStatement,
               ContinueStatement>
      node;
};

}  // namespace hydrant::jinja

#endif  // HYDRANT_ENGINE_TEXT_JINJA_AST_H_
