#include "absl/strings/str_cat.h"
#include "engine/text/jinja/attributes.h"
#include "engine/text/jinja/evaluator.h"
#include "engine/text/jinja/filters.h"
#include "engine/text/jinja/globals.h"
#include "engine/text/jinja/operators.h"
#include "engine/text/jinja/python_text.h"
#include "engine/text/jinja/tests.h"
#include "kernels/status_macros.h"

namespace hydrant::jinja {

absl::Status Evaluator::Enter(int line) {
  absl::Status status = runtime_.budget().Step();
  const int limit = runtime_.budget().limits().max_depth;
  if (depth_ >= limit && status.ok()) {
    status = absl::InvalidArgumentError(
        absl::StrCat("the template nests evaluations deeper than ", limit));
  }
  if (status.ok()) {
    ++depth_;
  } else {
    NoteError(line);
  }
  return status;
}

absl::StatusOr<Value> Evaluator::Evaluate(const Expression& expression) {
  HYDRANT_RETURN_IF_ERROR(Enter(expression.line));
  absl::StatusOr<Value> value =
      std::visit([this](const auto& node) { return Evaluate(node); }, expression.node);
  --depth_;
  if (!value.ok()) NoteError(expression.line);
  return value;
}

absl::StatusOr<Value> Evaluator::Evaluate(const Constant& node) { return node.value; }

absl::StatusOr<Value> Evaluator::Evaluate(const Name& node) {
  if (const Value* found = scope_->Find(node.name)) return *found;
  if (const Value* found = variables_.Find(node.name)) return *found;
  Value global = FindGlobal(node.name);
  if (!global.IsUndefined()) return global;
  return Value::UndefinedBecause(absl::StrCat("'", node.name, "' is undefined"));
}

absl::StatusOr<std::vector<Value>> Evaluator::EvaluateAll(
    const std::vector<ExpressionPtr>& expressions) {
  std::vector<Value> values;
  values.reserve(expressions.size());
  for (const ExpressionPtr& one : expressions) {
    HYDRANT_ASSIGN_OR_RETURN(Value value, Evaluate(*one));
    values.push_back(std::move(value));
  }
  return values;
}

absl::StatusOr<Value> Evaluator::Evaluate(const ListLiteral& node) {
  HYDRANT_ASSIGN_OR_RETURN(std::vector<Value> items, EvaluateAll(node.items));
  return runtime_.budget().NewList(std::move(items));
}

absl::StatusOr<Value> Evaluator::Evaluate(const TupleLiteral& node) {
  HYDRANT_ASSIGN_OR_RETURN(std::vector<Value> items, EvaluateAll(node.items));
  return runtime_.budget().NewSequence(Sequence::Kind::kTuple, std::move(items));
}

absl::StatusOr<Value> Evaluator::Evaluate(const DictLiteral& node) {
  Dict dict;
  for (const auto& [key_expression, value_expression] : node.entries) {
    HYDRANT_ASSIGN_OR_RETURN(const Value key, Evaluate(*key_expression));
    HYDRANT_ASSIGN_OR_RETURN(Value value, Evaluate(*value_expression));
    HYDRANT_RETURN_IF_ERROR(CheckHashable(key));
    HYDRANT_RETURN_IF_ERROR(runtime_.budget().Walk(key));
    dict.Set(key, std::move(value));
  }
  return runtime_.budget().NewDict(std::move(dict));
}

absl::StatusOr<Value> Evaluator::Evaluate(const Attribute& node) {
  HYDRANT_ASSIGN_OR_RETURN(const Value object, Evaluate(*node.object));
  return GetAttribute(&runtime_, object, node.name);
}

absl::StatusOr<Value> Evaluator::Evaluate(const Subscript& node) {
  HYDRANT_ASSIGN_OR_RETURN(const Value object, Evaluate(*node.object));
  HYDRANT_ASSIGN_OR_RETURN(const Value index, Evaluate(*node.index));
  return GetItem(&runtime_, object, index);
}

absl::StatusOr<Value> Evaluator::Evaluate(const SliceSubscript& node) {
  HYDRANT_ASSIGN_OR_RETURN(const Value object, Evaluate(*node.object));
  Value parts[3];
  const Expression* const expressions[] = {node.start.get(), node.stop.get(), node.step.get()};
  for (size_t i = 0; i < 3; ++i) {
    if (expressions[i] == nullptr) {
      parts[i] = Value(None{});
      continue;
    }
    HYDRANT_ASSIGN_OR_RETURN(parts[i], Evaluate(*expressions[i]));
  }
  return Slice(&runtime_.budget(), object, parts[0], parts[1], parts[2]);
}

absl::StatusOr<Arguments> Evaluator::EvaluateArguments(const CallArguments& arguments) {
  Arguments values;
  HYDRANT_ASSIGN_OR_RETURN(values.positional, EvaluateAll(arguments.positional));
  for (const auto& [name, expression] : arguments.keywords) {
    HYDRANT_ASSIGN_OR_RETURN(Value value, Evaluate(*expression));
    values.keywords.emplace_back(name, std::move(value));
  }
  if (arguments.sequence != nullptr) {
    HYDRANT_ASSIGN_OR_RETURN(const Value sequence, Evaluate(*arguments.sequence));
    HYDRANT_ASSIGN_OR_RETURN(const std::vector<Value> items, Iterate(&runtime_.budget(), sequence));
    values.positional.insert(values.positional.end(), items.begin(), items.end());
  }
  if (arguments.dict == nullptr) return values;
  HYDRANT_ASSIGN_OR_RETURN(const Value dict, Evaluate(*arguments.dict));
  if (dict.AsDict() == nullptr) return TypeError("the argument after ** is not a dict");
  HYDRANT_RETURN_IF_ERROR(runtime_.budget().AllocateItems(dict.AsDict()->size()));
  for (const auto& [key, value] : dict.AsDict()->entries()) {
    if (!key.IsString()) return TypeError("keywords must be strings");
    if (values.Keyword(key.AsString()) != nullptr)
      return TypeError(
          absl::StrCat("got multiple values for keyword argument '", key.AsString(), "'"));
    values.keywords.emplace_back(key.AsString(), value);
  }
  return values;
}

absl::StatusOr<Value> Evaluator::Call(const Value& callee, const Arguments& arguments) {
  if (callee.IsUndefined()) return UndefinedError(callee);
  const std::shared_ptr<Object> object = callee.SharedObject();
  if (object == nullptr)
    return TypeError(absl::StrCat("'", callee.TypeName(), "' object is not callable"));
  return object->Call(&runtime_, arguments);
}

absl::StatusOr<Value> Evaluator::Evaluate(const CallExpression& node) {
  HYDRANT_ASSIGN_OR_RETURN(const Value callee, Evaluate(*node.callee));
  HYDRANT_ASSIGN_OR_RETURN(const Arguments arguments, EvaluateArguments(node.arguments));
  return Call(callee, arguments);
}

absl::StatusOr<Value> Evaluator::Evaluate(const FilterExpression& node) {
  Value input;
  if (node.input == nullptr) {
    input = *filter_input_;
  } else {
    HYDRANT_ASSIGN_OR_RETURN(input, Evaluate(*node.input));
  }
  HYDRANT_ASSIGN_OR_RETURN(const Arguments arguments, EvaluateArguments(node.arguments));
  const Filter filter = FindFilter(node.name);
  if (filter == nullptr)
    return absl::InvalidArgumentError(absl::StrCat("no filter named '", node.name, "'"));
  return filter(&runtime_, input, arguments);
}

absl::StatusOr<Value> Evaluator::Evaluate(const TestExpression& node) {
  HYDRANT_ASSIGN_OR_RETURN(const Value input, Evaluate(*node.input));
  HYDRANT_ASSIGN_OR_RETURN(const Arguments arguments, EvaluateArguments(node.arguments));
  const Test test = FindTest(node.name);
  if (test == nullptr)
    return absl::InvalidArgumentError(absl::StrCat("no test named '", node.name, "'"));
  HYDRANT_ASSIGN_OR_RETURN(const bool holds, test(&runtime_, input, arguments));
  return Value(holds);
}

absl::StatusOr<Value> Evaluator::Evaluate(const UnaryExpression& node) {
  HYDRANT_ASSIGN_OR_RETURN(const Value operand, Evaluate(*node.operand));
  switch (node.kind) {
    case UnaryExpression::Kind::kMinus:
      return Negate(operand);
    case UnaryExpression::Kind::kPlus:
      return Plus(operand);
    case UnaryExpression::Kind::kNot:
      break;
  }
  return Value(!operand.IsTrue());
}

absl::StatusOr<Value> Evaluator::Evaluate(const BinaryExpression& node) {
  HYDRANT_ASSIGN_OR_RETURN(const Value left, Evaluate(*node.left));
  HYDRANT_ASSIGN_OR_RETURN(const Value right, Evaluate(*node.right));
  return Apply(&runtime_.budget(), node.op, left, right);
}

absl::StatusOr<Value> Evaluator::Evaluate(const LogicalExpression& node) {
  HYDRANT_ASSIGN_OR_RETURN(Value left, Evaluate(*node.left));
  if (left.IsTrue() != node.is_and) return left;
  return Evaluate(*node.right);
}

absl::StatusOr<Value> Evaluator::Evaluate(const Concatenation& node) {
  BoundedText text(&runtime_.budget());
  for (const ExpressionPtr& part : node.parts) {
    HYDRANT_ASSIGN_OR_RETURN(const Value value, Evaluate(*part));
    HYDRANT_ASSIGN_OR_RETURN(const std::string one, ToText(&runtime_.budget(), value));
    text.Append(one);
  }
  return std::move(text).String();
}

absl::StatusOr<bool> Evaluator::Compare(const Comparison::Part& part, const Value& left,
                                        const Value& right) {
  if (part.kind != Comparison::Kind::kCompare) {
    HYDRANT_ASSIGN_OR_RETURN(const bool in, Contains(&runtime_.budget(), right, left));
    return in == (part.kind == Comparison::Kind::kIn);
  }
  HYDRANT_RETURN_IF_ERROR(runtime_.budget().Walk(left));
  HYDRANT_RETURN_IF_ERROR(runtime_.budget().Walk(right));
  return jinja::Compare(part.comparator, left, right);
}

absl::StatusOr<Value> Evaluator::Evaluate(const Comparison& node) {
  HYDRANT_ASSIGN_OR_RETURN(Value left, Evaluate(*node.left));
  for (const Comparison::Part& part : node.parts) {
    HYDRANT_ASSIGN_OR_RETURN(Value right, Evaluate(*part.right));
    HYDRANT_ASSIGN_OR_RETURN(const bool holds, Compare(part, left, right));
    if (!holds) return Value(false);
    left = std::move(right);
  }
  return Value(true);
}

absl::StatusOr<Value> Evaluator::Evaluate(const Conditional& node) {
  HYDRANT_ASSIGN_OR_RETURN(const Value condition, Evaluate(*node.condition));
  if (condition.IsTrue()) return Evaluate(*node.yes);
  if (node.no != nullptr) return Evaluate(*node.no);
  return Value::UndefinedBecause(
      "the inline if-expression evaluated to false and no else section was defined.");
}

}  // namespace hydrant::jinja
