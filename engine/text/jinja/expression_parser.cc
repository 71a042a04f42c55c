#include "engine/text/jinja/expression_parser.h"

#include <algorithm>
#include <optional>

#include "absl/strings/str_cat.h"
#include "engine/text/jinja/filters.h"
#include "engine/text/jinja/tests.h"
#include "kernels/status_macros.h"

namespace hydrant::jinja {
namespace {

int HeightOf(const ExpressionPtr& expression) {
  return expression == nullptr ? 0 : expression->height;
}

template <typename... Pointers>
int HeightOf(const ExpressionPtr& first, const Pointers&... others) {
  return std::max(HeightOf(first), HeightOf(others...));
}

int HeightOf(const std::vector<ExpressionPtr>& expressions) {
  int height = 0;
  for (const ExpressionPtr& one : expressions) height = std::max(height, one->height);
  return height;
}

int HeightOf(const CallArguments& arguments) {
  int height =
      std::max(HeightOf(arguments.positional), HeightOf(arguments.sequence, arguments.dict));
  for (const auto& [name, value] : arguments.keywords) height = std::max(height, value->height);
  return height;
}

std::optional<Comparator> ComparatorOf(const Token& token) {
  if (token.kind != Token::Kind::kOperator) return std::nullopt;
  if (token.text == "==") return Comparator::kEqual;
  if (token.text == "!=") return Comparator::kNotEqual;
  if (token.text == "<") return Comparator::kLess;
  if (token.text == "<=") return Comparator::kLessEqual;
  if (token.text == ">") return Comparator::kGreater;
  if (token.text == ">=") return Comparator::kGreaterEqual;
  return std::nullopt;
}

std::optional<Operator> ProductOf(const Token& token) {
  if (token.kind != Token::Kind::kOperator) return std::nullopt;
  if (token.text == "*") return Operator::kMultiply;
  if (token.text == "/") return Operator::kDivide;
  if (token.text == "//") return Operator::kFloorDivide;
  if (token.text == "%") return Operator::kModulo;
  return std::nullopt;
}

// Counts the parser's recursion depth.
class Nesting {
 public:
  explicit Nesting(int* depth) : depth_(*depth) { ++depth_; }
  ~Nesting() { --depth_; }
  Nesting(const Nesting&) = delete;
  Nesting& operator=(const Nesting&) = delete;

 private:
  int& depth_;
};

}  // namespace

template <typename Node>
absl::StatusOr<ExpressionPtr> ExpressionParser::Make(int line, int height_below, Node node) {
  if (height_below >= limits_.max_nesting)
    return ErrorAtLine(line, absl::StrCat("an expression nests deeper than ", limits_.max_nesting));
  auto made = std::make_unique<Expression>();
  made->line = line;
  made->height = height_below + 1;
  made->node = std::move(node);
  return made;
}

absl::StatusOr<ExpressionPtr> ExpressionParser::Parse(bool with_conditional) {
  const Nesting nesting(&nesting_);
  if (nesting_ > limits_.max_nesting)
    return tokens_.Fail(absl::StrCat("an expression nests deeper than ", limits_.max_nesting));
  return with_conditional ? ParseConditional() : ParseOr();
}

absl::StatusOr<ExpressionPtr> ExpressionParser::ParseConditional() {
  const size_t uses = uses_.size();
  HYDRANT_ASSIGN_OR_RETURN(ExpressionPtr yes, ParseOr());
  while (tokens_.Current().IsName("if")) {
    const int line = tokens_.Take().line;
    HYDRANT_ASSIGN_OR_RETURN(ExpressionPtr condition, ParseOr());
    ExpressionPtr no;
    if (tokens_.TakeIfName("else")) {
      HYDRANT_ASSIGN_OR_RETURN(no, Parse());
    }
    ForgetUsesAfter(uses);
    const int height = HeightOf(condition, yes, no);
    HYDRANT_ASSIGN_OR_RETURN(
        yes, Make(line, height, Conditional{std::move(condition), std::move(yes), std::move(no)}));
  }
  return yes;
}

absl::StatusOr<ExpressionPtr> ExpressionParser::ParseOr() {
  HYDRANT_ASSIGN_OR_RETURN(ExpressionPtr left, ParseAnd());
  while (tokens_.Current().IsName("or")) {
    const int line = tokens_.Take().line;
    HYDRANT_ASSIGN_OR_RETURN(ExpressionPtr right, ParseAnd());
    const int height = HeightOf(left, right);
    HYDRANT_ASSIGN_OR_RETURN(
        left, Make(line, height, LogicalExpression{false, std::move(left), std::move(right)}));
  }
  return left;
}

absl::StatusOr<ExpressionPtr> ExpressionParser::ParseAnd() {
  HYDRANT_ASSIGN_OR_RETURN(ExpressionPtr left, ParseNot());
  while (tokens_.Current().IsName("and")) {
    const int line = tokens_.Take().line;
    HYDRANT_ASSIGN_OR_RETURN(ExpressionPtr right, ParseNot());
    const int height = HeightOf(left, right);
    HYDRANT_ASSIGN_OR_RETURN(
        left, Make(line, height, LogicalExpression{true, std::move(left), std::move(right)}));
  }
  return left;
}

absl::StatusOr<ExpressionPtr> ExpressionParser::ParseNot() {
  const int line = tokens_.line();
  int count = 0;
  while (tokens_.TakeIfName("not")) ++count;
  HYDRANT_ASSIGN_OR_RETURN(ExpressionPtr operand, ParseComparison());
  for (; count > 0; --count) {
    const int height = HeightOf(operand);
    HYDRANT_ASSIGN_OR_RETURN(
        operand,
        Make(line, height, UnaryExpression{UnaryExpression::Kind::kNot, std::move(operand)}));
  }
  return operand;
}

absl::StatusOr<ExpressionPtr> ExpressionParser::ParseComparison() {
  const int line = tokens_.line();
  Comparison comparison;
  HYDRANT_ASSIGN_OR_RETURN(comparison.left, ParseSum());
  int height = comparison.left->height;
  while (true) {
    Comparison::Part part{Comparison::Kind::kCompare, Comparator::kEqual, nullptr};
    if (const auto comparator = ComparatorOf(tokens_.Current()); comparator.has_value()) {
      tokens_.Take();
      part.comparator = *comparator;
    } else if (tokens_.TakeIfName("in")) {
      part.kind = Comparison::Kind::kIn;
    } else if (tokens_.Current().IsName("not") && tokens_.Next().IsName("in")) {
      tokens_.Take();
      tokens_.Take();
      part.kind = Comparison::Kind::kNotIn;
    } else {
      break;
    }
    HYDRANT_ASSIGN_OR_RETURN(part.right, ParseSum());
    height = std::max(height, part.right->height);
    comparison.parts.push_back(std::move(part));
  }
  if (comparison.parts.empty()) return std::move(comparison.left);
  return Make(line, height, std::move(comparison));
}

absl::StatusOr<ExpressionPtr> ExpressionParser::ParseSum() {
  HYDRANT_ASSIGN_OR_RETURN(ExpressionPtr left, ParseConcatenation());
  while (tokens_.Current().IsOperator("+") || tokens_.Current().IsOperator("-")) {
    const Token& token = tokens_.Take();
    const Operator op = token.text == "+" ? Operator::kAdd : Operator::kSubtract;
    HYDRANT_ASSIGN_OR_RETURN(ExpressionPtr right, ParseConcatenation());
    const int height = HeightOf(left, right);
    HYDRANT_ASSIGN_OR_RETURN(
        left, Make(token.line, height, BinaryExpression{op, std::move(left), std::move(right)}));
  }
  return left;
}

absl::StatusOr<ExpressionPtr> ExpressionParser::ParseConcatenation() {
  const int line = tokens_.line();
  Concatenation parts;
  do {
    HYDRANT_ASSIGN_OR_RETURN(ExpressionPtr part, ParseProduct());
    parts.parts.push_back(std::move(part));
  } while (tokens_.TakeIfOperator("~"));
  if (parts.parts.size() == 1) return std::move(parts.parts[0]);
  const int height = HeightOf(parts.parts);
  return Make(line, height, std::move(parts));
}

absl::StatusOr<ExpressionPtr> ExpressionParser::ParseProduct() {
  HYDRANT_ASSIGN_OR_RETURN(ExpressionPtr left, ParsePower());
  for (auto op = ProductOf(tokens_.Current()); op.has_value(); op = ProductOf(tokens_.Current())) {
    const int line = tokens_.Take().line;
    HYDRANT_ASSIGN_OR_RETURN(ExpressionPtr right, ParsePower());
    const int height = HeightOf(left, right);
    HYDRANT_ASSIGN_OR_RETURN(
        left, Make(line, height, BinaryExpression{*op, std::move(left), std::move(right)}));
  }
  return left;
}

// Left-associative, unlike Python's.
absl::StatusOr<ExpressionPtr> ExpressionParser::ParsePower() {
  HYDRANT_ASSIGN_OR_RETURN(ExpressionPtr left, ParseUnary(/*with_filter=*/true));
  while (tokens_.Current().IsOperator("**")) {
    const int line = tokens_.Take().line;
    HYDRANT_ASSIGN_OR_RETURN(ExpressionPtr right, ParseUnary(/*with_filter=*/true));
    const int height = HeightOf(left, right);
    HYDRANT_ASSIGN_OR_RETURN(
        left,
        Make(line, height, BinaryExpression{Operator::kPower, std::move(left), std::move(right)}));
  }
  return left;
}

absl::StatusOr<ExpressionPtr> ExpressionParser::ParseUnary(bool with_filter) {
  const Nesting nesting(&nesting_);
  if (nesting_ > limits_.max_nesting)
    return tokens_.Fail(absl::StrCat("an expression nests deeper than ", limits_.max_nesting));
  const int line = tokens_.line();
  const bool minus = tokens_.Current().IsOperator("-");
  ExpressionPtr expression;
  if (minus || tokens_.Current().IsOperator("+")) {
    tokens_.Take();
    HYDRANT_ASSIGN_OR_RETURN(ExpressionPtr operand, ParseUnary(/*with_filter=*/false));
    const auto kind = minus ? UnaryExpression::Kind::kMinus : UnaryExpression::Kind::kPlus;
    const int height = HeightOf(operand);
    HYDRANT_ASSIGN_OR_RETURN(expression,
                             Make(line, height, UnaryExpression{kind, std::move(operand)}));
  } else {
    HYDRANT_ASSIGN_OR_RETURN(expression, ParsePrimary());
  }
  HYDRANT_ASSIGN_OR_RETURN(expression, ParsePostfix(std::move(expression)));
  return with_filter ? ParseFilters(std::move(expression)) : std::move(expression);
}

absl::StatusOr<ExpressionPtr> ExpressionParser::ParsePrimary() {
  const Token& token = tokens_.Current();
  switch (token.kind) {
    case Token::Kind::kName:
      return ParseName();
    case Token::Kind::kString:
      return ParseStrings();
    case Token::Kind::kInteger:
      tokens_.Take();
      return Make(token.line, 0, Constant{Value(token.integer)});
    case Token::Kind::kFloat:
      tokens_.Take();
      return Make(token.line, 0, Constant{Value(token.number)});
    default:
      break;
  }
  if (token.IsOperator("[")) return ParseList();
  if (token.IsOperator("{")) return ParseDict();
  if (!token.IsOperator("(")) return tokens_.Unexpected("an expression");
  tokens_.Take();
  if (tokens_.TakeIfOperator(")")) return Make(token.line, 0, TupleLiteral{});
  HYDRANT_ASSIGN_OR_RETURN(ExpressionPtr inner, ParseTuple());
  HYDRANT_RETURN_IF_ERROR(tokens_.ExpectOperator(")"));
  return inner;
}

absl::StatusOr<ExpressionPtr> ExpressionParser::ParseName() {
  const Token& token = tokens_.Take();
  const std::string& name = token.text;
  if (name == "true" || name == "True") return Make(token.line, 0, Constant{Value(true)});
  if (name == "false" || name == "False") return Make(token.line, 0, Constant{Value(false)});
  if (name == "none" || name == "None") return Make(token.line, 0, Constant{Value(None{})});
  for (absl::flat_hash_set<std::string>* names : recorders_) names->insert(name);
  return Make(token.line, 0, Name{name});
}

// Adjacent string literals are concatenated.
absl::StatusOr<ExpressionPtr> ExpressionParser::ParseStrings() {
  const int line = tokens_.line();
  std::string text;
  while (tokens_.Current().kind == Token::Kind::kString) text += tokens_.Take().text;
  return Make(line, 0, Constant{Value::String(std::move(text))});
}

absl::StatusOr<ExpressionPtr> ExpressionParser::ParseList() {
  const int line = tokens_.Take().line;
  ListLiteral list;
  while (!tokens_.Current().IsOperator("]")) {
    HYDRANT_ASSIGN_OR_RETURN(ExpressionPtr item, Parse());
    list.items.push_back(std::move(item));
    if (!tokens_.TakeIfOperator(",")) break;
  }
  HYDRANT_RETURN_IF_ERROR(tokens_.ExpectOperator("]"));
  const int height = HeightOf(list.items);
  return Make(line, height, std::move(list));
}

absl::StatusOr<ExpressionPtr> ExpressionParser::ParseDict() {
  const int line = tokens_.Take().line;
  DictLiteral dict;
  int height = 0;
  while (!tokens_.Current().IsOperator("}")) {
    HYDRANT_ASSIGN_OR_RETURN(ExpressionPtr key, Parse());
    HYDRANT_RETURN_IF_ERROR(tokens_.ExpectOperator(":"));
    HYDRANT_ASSIGN_OR_RETURN(ExpressionPtr value, Parse());
    height = std::max(height, HeightOf(key, value));
    dict.entries.emplace_back(std::move(key), std::move(value));
    if (!tokens_.TakeIfOperator(",")) break;
  }
  HYDRANT_RETURN_IF_ERROR(tokens_.ExpectOperator("}"));
  return Make(line, height, std::move(dict));
}

bool ExpressionParser::IsTupleEnd(std::string_view end_name) const {
  const Token& token = tokens_.Current();
  return token.kind == Token::Kind::kExpressionEnd || token.kind == Token::Kind::kStatementEnd ||
         token.IsOperator(")") || (!end_name.empty() && token.IsName(end_name));
}

absl::StatusOr<ExpressionPtr> ExpressionParser::ParseTuple(bool with_conditional,
                                                           std::string_view end_name) {
  const int line = tokens_.line();
  HYDRANT_ASSIGN_OR_RETURN(ExpressionPtr first, Parse(with_conditional));
  if (!tokens_.Current().IsOperator(",")) return first;
  TupleLiteral tuple;
  tuple.items.push_back(std::move(first));
  while (tokens_.TakeIfOperator(",")) {
    if (IsTupleEnd(end_name)) break;
    HYDRANT_ASSIGN_OR_RETURN(ExpressionPtr item, Parse(with_conditional));
    tuple.items.push_back(std::move(item));
  }
  const int height = HeightOf(tuple.items);
  return Make(line, height, std::move(tuple));
}

absl::StatusOr<ExpressionPtr> ExpressionParser::ParsePostfix(ExpressionPtr expression) {
  while (true) {
    const Token& token = tokens_.Current();
    if (token.IsOperator(".")) {
      HYDRANT_ASSIGN_OR_RETURN(expression, ParseAttribute(std::move(expression)));
    } else if (token.IsOperator("[")) {
      HYDRANT_ASSIGN_OR_RETURN(expression, ParseSubscript(std::move(expression)));
    } else if (token.IsOperator("(")) {
      HYDRANT_ASSIGN_OR_RETURN(expression, ParseCall(std::move(expression)));
    } else {
      return expression;
    }
  }
}

absl::StatusOr<ExpressionPtr> ExpressionParser::ParseFilters(ExpressionPtr expression) {
  while (true) {
    const Token& token = tokens_.Current();
    if (token.IsOperator("|")) {
      tokens_.Take();
      HYDRANT_ASSIGN_OR_RETURN(expression, ParseFilter(std::move(expression)));
    } else if (token.IsName("is")) {
      HYDRANT_ASSIGN_OR_RETURN(expression, ParseTest(std::move(expression)));
    } else if (token.IsOperator("(")) {
      HYDRANT_ASSIGN_OR_RETURN(expression, ParseCall(std::move(expression)));
    } else {
      return expression;
    }
  }
}

absl::StatusOr<ExpressionPtr> ExpressionParser::ParseAttribute(ExpressionPtr object) {
  const int line = tokens_.Take().line;
  const Token& token = tokens_.Take();
  const int height = HeightOf(object);
  if (token.kind == Token::Kind::kName)
    return Make(line, height, Attribute{std::move(object), token.text});
  if (token.kind != Token::Kind::kInteger) return ErrorAtLine(line, "expected name or number");
  HYDRANT_ASSIGN_OR_RETURN(ExpressionPtr index, Make(line, 0, Constant{Value(token.integer)}));
  return Make(line, height, Subscript{std::move(object), std::move(index)});
}

absl::StatusOr<ExpressionPtr> ExpressionParser::ParseSubscript(ExpressionPtr object) {
  const int line = tokens_.Take().line;
  ExpressionPtr index;
  if (!tokens_.Current().IsOperator(":")) {
    HYDRANT_ASSIGN_OR_RETURN(index, Parse());
  }
  if (tokens_.Current().IsOperator(":"))
    return ParseSlice(std::move(object), std::move(index), line);
  if (tokens_.Current().IsOperator(",")) {
    TupleLiteral tuple;
    tuple.items.push_back(std::move(index));
    while (tokens_.TakeIfOperator(",")) {
      HYDRANT_ASSIGN_OR_RETURN(ExpressionPtr item, Parse());
      tuple.items.push_back(std::move(item));
    }
    const int height = HeightOf(tuple.items);
    HYDRANT_ASSIGN_OR_RETURN(index, Make(line, height, std::move(tuple)));
  }
  HYDRANT_RETURN_IF_ERROR(tokens_.ExpectOperator("]"));
  const int height = HeightOf(object, index);
  return Make(line, height, Subscript{std::move(object), std::move(index)});
}

absl::StatusOr<ExpressionPtr> ExpressionParser::ParseSlice(ExpressionPtr object,
                                                           ExpressionPtr start, int line) {
  SliceSubscript slice{std::move(object), std::move(start), nullptr, nullptr};
  const auto is_part = [&] {
    return !tokens_.Current().IsOperator(":") && !tokens_.Current().IsOperator("]");
  };
  tokens_.Take();
  if (is_part()) {
    HYDRANT_ASSIGN_OR_RETURN(slice.stop, Parse());
  }
  if (tokens_.TakeIfOperator(":") && is_part()) {
    HYDRANT_ASSIGN_OR_RETURN(slice.step, Parse());
  }
  HYDRANT_RETURN_IF_ERROR(tokens_.ExpectOperator("]"));
  const int height = HeightOf(slice.object, slice.start, slice.stop, slice.step);
  return Make(line, height, std::move(slice));
}

absl::StatusOr<ExpressionPtr> ExpressionParser::ParseCall(ExpressionPtr callee) {
  const int line = tokens_.line();
  HYDRANT_ASSIGN_OR_RETURN(CallArguments arguments, ParseArguments());
  if (const auto* name = std::get_if<Name>(&callee->node); name != nullptr)
    uses_.push_back({"function", name->name, line});
  const int height = std::max(HeightOf(callee), HeightOf(arguments));
  return Make(line, height, CallExpression{std::move(callee), std::move(arguments)});
}

absl::StatusOr<CallArguments> ExpressionParser::ParseArguments() {
  HYDRANT_RETURN_IF_ERROR(tokens_.ExpectOperator("("));
  CallArguments arguments;
  while (!tokens_.Current().IsOperator(")")) {
    HYDRANT_RETURN_IF_ERROR(ParseArgument(&arguments));
    if (!tokens_.TakeIfOperator(",")) break;
  }
  HYDRANT_RETURN_IF_ERROR(tokens_.ExpectOperator(")"));
  return arguments;
}

absl::Status ExpressionParser::ParseArgument(CallArguments* arguments) {
  const bool starred = arguments->sequence != nullptr || arguments->dict != nullptr;
  const absl::Status bad = tokens_.Fail("invalid syntax for function call expression");
  if (tokens_.TakeIfOperator("*")) {
    if (starred) return bad;
    HYDRANT_ASSIGN_OR_RETURN(arguments->sequence, Parse());
    return absl::OkStatus();
  }
  if (tokens_.TakeIfOperator("**")) {
    if (arguments->dict != nullptr) return bad;
    HYDRANT_ASSIGN_OR_RETURN(arguments->dict, Parse());
    return absl::OkStatus();
  }
  if (tokens_.Current().kind == Token::Kind::kName && tokens_.Next().IsOperator("=")) {
    if (arguments->dict != nullptr) return bad;
    std::string name = tokens_.Take().text;
    tokens_.Take();
    HYDRANT_ASSIGN_OR_RETURN(ExpressionPtr value, Parse());
    arguments->keywords.emplace_back(std::move(name), std::move(value));
    return absl::OkStatus();
  }
  if (starred || !arguments->keywords.empty()) return bad;
  HYDRANT_ASSIGN_OR_RETURN(ExpressionPtr value, Parse());
  arguments->positional.push_back(std::move(value));
  return absl::OkStatus();
}

absl::StatusOr<std::string> ExpressionParser::ParseDottedName() {
  HYDRANT_ASSIGN_OR_RETURN(std::string name, tokens_.ExpectName());
  while (tokens_.TakeIfOperator(".")) {
    HYDRANT_ASSIGN_OR_RETURN(const std::string part, tokens_.ExpectName());
    absl::StrAppend(&name, ".", part);
  }
  return name;
}

absl::StatusOr<ExpressionPtr> ExpressionParser::ParseFilter(ExpressionPtr input) {
  const int line = tokens_.line();
  FilterExpression filter;
  HYDRANT_ASSIGN_OR_RETURN(filter.name, ParseDottedName());
  if (FindFilter(filter.name) == nullptr) uses_.push_back({"filter", filter.name, line});
  if (tokens_.Current().IsOperator("(")) {
    HYDRANT_ASSIGN_OR_RETURN(filter.arguments, ParseArguments());
  }
  filter.input = std::move(input);
  const int height = std::max(HeightOf(filter.input), HeightOf(filter.arguments));
  return Make(line, height, std::move(filter));
}

absl::StatusOr<ExpressionPtr> ExpressionParser::ParseFilterChain() {
  HYDRANT_ASSIGN_OR_RETURN(ExpressionPtr chain, ParseFilter(nullptr));
  while (tokens_.TakeIfOperator("|")) {
    HYDRANT_ASSIGN_OR_RETURN(chain, ParseFilter(std::move(chain)));
  }
  return chain;
}

absl::StatusOr<ExpressionPtr> ExpressionParser::ParseTest(ExpressionPtr input) {
  const int line = tokens_.Take().line;
  const bool negated = tokens_.TakeIfName("not");
  TestExpression test;
  HYDRANT_ASSIGN_OR_RETURN(test.name, ParseDottedName());
  if (FindTest(test.name) == nullptr) uses_.push_back({"test", test.name, line});
  const Token& token = tokens_.Current();
  const bool has_operand =
      (token.kind == Token::Kind::kName && !token.IsName("else") && !token.IsName("or") &&
       !token.IsName("and")) ||
      token.kind == Token::Kind::kString || token.kind == Token::Kind::kInteger ||
      token.kind == Token::Kind::kFloat || token.IsOperator("[") || token.IsOperator("{");
  if (token.IsOperator("(")) {
    HYDRANT_ASSIGN_OR_RETURN(test.arguments, ParseArguments());
  } else if (token.IsName("is")) {
    return tokens_.Fail("You cannot chain multiple tests with is");
  } else if (has_operand) {
    HYDRANT_ASSIGN_OR_RETURN(ExpressionPtr operand, ParsePrimary());
    HYDRANT_ASSIGN_OR_RETURN(operand, ParsePostfix(std::move(operand)));
    test.arguments.positional.push_back(std::move(operand));
  }
  test.input = std::move(input);
  const int height = std::max(HeightOf(test.input), HeightOf(test.arguments));
  HYDRANT_ASSIGN_OR_RETURN(ExpressionPtr made, Make(line, height, std::move(test)));
  if (!negated) return made;
  return Make(line, height + 1, UnaryExpression{UnaryExpression::Kind::kNot, std::move(made)});
}

absl::StatusOr<Target> ExpressionParser::ParseSimpleTarget(bool with_namespace) {
  const Nesting nesting(&nesting_);
  if (nesting_ > limits_.max_nesting)
    return tokens_.Fail(absl::StrCat("an assignment nests deeper than ", limits_.max_nesting));
  if (tokens_.TakeIfOperator("(")) {
    HYDRANT_ASSIGN_OR_RETURN(Target inner, ParseTarget(with_namespace));
    HYDRANT_RETURN_IF_ERROR(tokens_.ExpectOperator(")"));
    return inner;
  }
  Target target;
  HYDRANT_ASSIGN_OR_RETURN(target.name, tokens_.ExpectName());
  static constexpr std::string_view kConstants[] = {"true",  "True", "false",
                                                    "False", "none", "None"};
  if (std::find(std::begin(kConstants), std::end(kConstants), target.name) != std::end(kConstants))
    return tokens_.Fail(absl::StrCat("can't assign to ", target.name));
  if (with_namespace && tokens_.TakeIfOperator(".")) {
    HYDRANT_ASSIGN_OR_RETURN(target.attribute, tokens_.ExpectName());
  }
  return target;
}

absl::StatusOr<Target> ExpressionParser::ParseTarget(bool with_namespace,
                                                     std::string_view end_name) {
  HYDRANT_ASSIGN_OR_RETURN(Target first, ParseSimpleTarget(with_namespace));
  if (!tokens_.Current().IsOperator(",")) return first;
  Target tuple;
  tuple.items.push_back(std::move(first));
  while (tokens_.TakeIfOperator(",")) {
    if (IsTupleEnd(end_name) || tokens_.Current().IsOperator("=")) break;
    HYDRANT_ASSIGN_OR_RETURN(Target item, ParseSimpleTarget(with_namespace));
    tuple.items.push_back(std::move(item));
  }
  return tuple;
}

}  // namespace hydrant::jinja
