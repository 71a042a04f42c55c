// Walks a template's tree with one set of variables and writes its text. One per rendering; used by
// one thread.
#ifndef HYDRANT_ENGINE_TEXT_JINJA_EVALUATOR_H_
#define HYDRANT_ENGINE_TEXT_JINJA_EVALUATOR_H_

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/text/jinja/arguments.h"
#include "engine/text/jinja/ast.h"
#include "engine/text/jinja/runtime.h"
#include "engine/text/jinja/scope.h"

namespace hydrant::jinja {

class Evaluator {
 public:
  // Borrows both. `variables`: the template's input.
  Evaluator(Runtime* runtime, const Dict& variables);
  ~Evaluator();
  Evaluator(const Evaluator&) = delete;
  Evaluator& operator=(const Evaluator&) = delete;

  // An error is "line 3: MESSAGE", or raise_exception()'s own message.
  absl::StatusOr<std::string> Render(const Body& body);

  // Calls a macro defined in `scope`.
  absl::StatusOr<Value> CallMacro(const MacroDefinition& macro, const std::shared_ptr<Scope>& scope,
                                  const Arguments& arguments);

 private:
  enum class Flow { kNormal, kBreak, kContinue };
  class InnerScope;
  class Capture;

  // Statements.
  absl::StatusOr<Flow> Run(const Body& body);
  absl::StatusOr<Flow> Run(const TextOutput& statement);
  absl::StatusOr<Flow> Run(const Output& statement);
  absl::StatusOr<Flow> Run(const IfStatement& statement);
  absl::StatusOr<Flow> Run(const ForStatement& statement);
  absl::StatusOr<Flow> Run(const SetStatement& statement);
  absl::StatusOr<Flow> Run(const SetBlock& statement);
  absl::StatusOr<Flow> Run(const WithStatement& statement);
  absl::StatusOr<Flow> Run(const FilterBlock& statement);
  absl::StatusOr<Flow> Run(const MacroStatement& statement);
  absl::StatusOr<Flow> Run(const CallBlock& statement);
  absl::StatusOr<Flow> Run(const GenerationBlock& statement);
  absl::StatusOr<Flow> Run(const BreakStatement& statement);
  absl::StatusOr<Flow> Run(const ContinueStatement& statement);
  absl::StatusOr<std::vector<Value>> LoopItems(const ForStatement& statement);
  absl::StatusOr<Value> RunToString(const Body& body);
  absl::Status Write(std::string_view text);
  absl::Status Assign(const Target& target, const Value& value);
  Value NewMacro(std::shared_ptr<const MacroDefinition> macro);
  absl::Status BindParameters(const MacroDefinition& macro, const Arguments& arguments,
                              bool has_caller);
  absl::Status BindSpecials(const MacroDefinition& macro, const Arguments& arguments);

  // Expressions.
  absl::StatusOr<Value> Evaluate(const Expression& expression);
  absl::StatusOr<Value> Evaluate(const Constant& node);
  absl::StatusOr<Value> Evaluate(const Name& node);
  absl::StatusOr<Value> Evaluate(const ListLiteral& node);
  absl::StatusOr<Value> Evaluate(const TupleLiteral& node);
  absl::StatusOr<Value> Evaluate(const DictLiteral& node);
  absl::StatusOr<Value> Evaluate(const Attribute& node);
  absl::StatusOr<Value> Evaluate(const Subscript& node);
  absl::StatusOr<Value> Evaluate(const SliceSubscript& node);
  absl::StatusOr<Value> Evaluate(const CallExpression& node);
  absl::StatusOr<Value> Evaluate(const FilterExpression& node);
  absl::StatusOr<Value> Evaluate(const TestExpression& node);
  absl::StatusOr<Value> Evaluate(const UnaryExpression& node);
  absl::StatusOr<Value> Evaluate(const BinaryExpression& node);
  absl::StatusOr<Value> Evaluate(const LogicalExpression& node);
  absl::StatusOr<Value> Evaluate(const Concatenation& node);
  absl::StatusOr<Value> Evaluate(const Comparison& node);
  absl::StatusOr<Value> Evaluate(const Conditional& node);
  absl::StatusOr<std::vector<Value>> EvaluateAll(const std::vector<ExpressionPtr>& expressions);
  absl::StatusOr<Arguments> EvaluateArguments(const CallArguments& arguments);
  absl::StatusOr<Value> Call(const Value& callee, const Arguments& arguments);
  absl::StatusOr<bool> Compare(const Comparison::Part& part, const Value& left, const Value& right);

  absl::Status Enter(int line);  // one evaluation deeper; goes with --depth_
  // Records the innermost line of an error.
  void NoteError(int line) {
    if (error_line_ == 0) error_line_ = line;
  }

  Runtime& runtime_;
  const Dict& variables_;
  std::shared_ptr<Scope> scope_;
  std::string* out_ = nullptr;
  const Value* filter_input_ = nullptr;  // the text of a filter block, for its innermost filter
  int depth_ = 0;
  int error_line_ = 0;
  std::vector<std::shared_ptr<Scope>> captured_;  // by macros, which the scope may hold in a cycle
};

}  // namespace hydrant::jinja

#endif  // HYDRANT_ENGINE_TEXT_JINJA_EVALUATOR_H_
