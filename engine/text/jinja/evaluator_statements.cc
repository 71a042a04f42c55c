#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/text/jinja/evaluator.h"
#include "engine/text/jinja/globals.h"
#include "engine/text/jinja/lexer.h"
#include "engine/text/jinja/loop_context.h"
#include "engine/text/jinja/operators.h"
#include "engine/text/jinja/python_text.h"
#include "kernels/status_macros.h"

namespace hydrant::jinja {
namespace {

// A macro as a value. The evaluator outlives it, as values die with a rendering.
class Macro final : public Object {
 public:
  Macro(Evaluator* evaluator, std::shared_ptr<const MacroDefinition> definition,
        std::shared_ptr<Scope> scope)
      : evaluator_(*evaluator), definition_(std::move(definition)), scope_(std::move(scope)) {}

  std::string TypeName() const override { return "Macro"; }
  bool IsCallable() const override { return true; }
  absl::StatusOr<Value> Call(Runtime*, const Arguments& arguments) override {
    return evaluator_.CallMacro(*definition_, scope_, arguments);
  }
  Value Attribute(std::string_view name) const override {
    if (name == "name") return Value::String(definition_->name);
    return Object::Attribute(name);
  }
  std::string Repr() const override {
    return absl::StrCat("<Macro ", QuotedRepr(definition_->name), ">");
  }

 private:
  Evaluator& evaluator_;
  const std::shared_ptr<const MacroDefinition> definition_;
  const std::shared_ptr<Scope> scope_;
};

bool HasParameter(const MacroDefinition& macro, std::string_view name) {
  return std::find(macro.parameters.begin(), macro.parameters.end(), name) !=
         macro.parameters.end();
}

}  // namespace

// A scope within the current one, or within `around`, during its lifetime.
class Evaluator::InnerScope {
 public:
  explicit InnerScope(Evaluator* evaluator) : InnerScope(evaluator, evaluator->scope_) {}
  InnerScope(Evaluator* evaluator, std::shared_ptr<Scope> around)
      : evaluator_(*evaluator), outer_(evaluator->scope_), around_(std::move(around)) {
    evaluator_.scope_ = std::make_shared<Scope>(around_);
  }
  ~InnerScope() { evaluator_.scope_ = outer_; }
  InnerScope(const InnerScope&) = delete;
  InnerScope& operator=(const InnerScope&) = delete;

  // Starts with new variables; a macro may hold the old ones.
  void Renew() {
    if (evaluator_.scope_.use_count() == 1) {
      evaluator_.scope_->Clear();
    } else {
      evaluator_.scope_ = std::make_shared<Scope>(around_);
    }
  }

 private:
  Evaluator& evaluator_;
  const std::shared_ptr<Scope> outer_, around_;
};

// Captures the output in its own text during its lifetime.
class Evaluator::Capture {
 public:
  explicit Capture(Evaluator* evaluator) : evaluator_(*evaluator), outer_(evaluator->out_) {
    evaluator_.out_ = &text_;
  }
  ~Capture() { evaluator_.out_ = outer_; }
  Capture(const Capture&) = delete;
  Capture& operator=(const Capture&) = delete;

  std::string Take() { return std::move(text_); }

 private:
  Evaluator& evaluator_;
  std::string* const outer_;
  std::string text_;
};

Evaluator::Evaluator(Runtime* runtime, const Dict& variables)
    : runtime_(*runtime), variables_(variables), scope_(std::make_shared<Scope>(nullptr)) {}

Evaluator::~Evaluator() {
  for (const std::shared_ptr<Scope>& scope : captured_) scope->Clear();
}

absl::StatusOr<std::string> Evaluator::Render(const Body& body) {
  Capture capture(this);
  const absl::Status status = Run(body).status();
  if (status.ok()) return capture.Take();
  if (runtime_.raised()) return status;
  return ErrorAtLine(error_line_, {status.message().data(), status.message().size()});
}

absl::StatusOr<Evaluator::Flow> Evaluator::Run(const Body& body) {
  for (const Statement& statement : body) {
    HYDRANT_RETURN_IF_ERROR(Enter(statement.line));
    const absl::StatusOr<Flow> flow =
        std::visit([this](const auto& node) { return Run(node); }, statement.node);
    --depth_;
    if (!flow.ok()) NoteError(statement.line);
    if (!flow.ok() || *flow != Flow::kNormal) return flow;
  }
  return Flow::kNormal;
}

absl::Status Evaluator::Write(std::string_view text) {
  HYDRANT_RETURN_IF_ERROR(runtime_.budget().Allocate(static_cast<int64_t>(text.size())));
  const int64_t limit = runtime_.budget().limits().max_output_bytes;
  if (static_cast<int64_t>(out_->size() + text.size()) > limit) {
    return absl::InvalidArgumentError(
        absl::StrCat("the template writes more than ", limit, " bytes"));
  }
  *out_ += text;
  return absl::OkStatus();
}

absl::StatusOr<Evaluator::Flow> Evaluator::Run(const TextOutput& statement) {
  HYDRANT_RETURN_IF_ERROR(Write(statement.text.AsString()));
  return Flow::kNormal;
}

absl::StatusOr<Evaluator::Flow> Evaluator::Run(const Output& statement) {
  HYDRANT_ASSIGN_OR_RETURN(const Value value, Evaluate(*statement.expression));
  HYDRANT_ASSIGN_OR_RETURN(const std::string text, ToText(&runtime_.budget(), value));
  HYDRANT_RETURN_IF_ERROR(Write(text));
  return Flow::kNormal;
}

absl::StatusOr<Evaluator::Flow> Evaluator::Run(const IfStatement& statement) {
  for (const auto& [condition, body] : statement.branches) {
    HYDRANT_ASSIGN_OR_RETURN(const Value value, Evaluate(*condition));
    if (value.IsTrue()) return Run(body);
  }
  return Run(statement.otherwise);
}

absl::StatusOr<std::vector<Value>> Evaluator::LoopItems(const ForStatement& statement) {
  HYDRANT_ASSIGN_OR_RETURN(const Value sequence, Evaluate(*statement.items));
  HYDRANT_ASSIGN_OR_RETURN(std::vector<Value> items, Iterate(&runtime_.budget(), sequence));
  if (statement.condition == nullptr) return items;
  std::vector<Value> kept;
  InnerScope scope(this);
  for (Value& item : items) {
    scope.Renew();
    HYDRANT_RETURN_IF_ERROR(Assign(statement.target, item));
    HYDRANT_ASSIGN_OR_RETURN(const Value condition, Evaluate(*statement.condition));
    if (condition.IsTrue()) kept.push_back(std::move(item));
  }
  return kept;
}

absl::StatusOr<Evaluator::Flow> Evaluator::Run(const ForStatement& statement) {
  HYDRANT_ASSIGN_OR_RETURN(std::vector<Value> items, LoopItems(statement));
  const auto loop = std::make_shared<LoopContext>(std::move(items));
  InnerScope scope(this);
  bool reached_end = false;
  for (size_t i = 0; i < loop->items().size(); ++i) {
    scope.Renew();
    loop->MoveTo(i);
    scope_->Set("loop", Value(std::shared_ptr<Object>(loop)));
    HYDRANT_RETURN_IF_ERROR(Assign(statement.target, loop->items()[i]));
    HYDRANT_ASSIGN_OR_RETURN(const Flow flow, Run(statement.body));
    reached_end = reached_end || flow == Flow::kNormal;
    if (flow == Flow::kBreak) break;
  }
  // As in Jinja: `else` runs if no iteration reached the body's end, also after continue or break.
  if (reached_end) return Flow::kNormal;
  scope.Renew();
  return Run(statement.otherwise);
}

absl::Status Evaluator::Assign(const Target& target, const Value& value) {
  if (!target.items.empty()) {
    HYDRANT_ASSIGN_OR_RETURN(const std::vector<Value> parts, Iterate(&runtime_.budget(), value));
    if (parts.size() != target.items.size()) {
      return TypeError(absl::StrCat("cannot unpack ", parts.size(), " values into ",
                                    target.items.size(), " names"));
    }
    for (size_t i = 0; i < parts.size(); ++i)
      HYDRANT_RETURN_IF_ERROR(Assign(target.items[i], parts[i]));
    return absl::OkStatus();
  }
  if (target.attribute.empty()) {
    scope_->Set(target.name, value);
    return absl::OkStatus();
  }
  HYDRANT_ASSIGN_OR_RETURN(const Value holder, Evaluate(Name{target.name}));
  auto* space = dynamic_cast<Namespace*>(holder.AsObject());
  if (space == nullptr) return TypeError("cannot assign attribute on non-namespace object");
  HYDRANT_RETURN_IF_ERROR(CheckNamespaceName(target.attribute));
  space->Set(target.attribute, value);
  return absl::OkStatus();
}

absl::StatusOr<Evaluator::Flow> Evaluator::Run(const SetStatement& statement) {
  HYDRANT_ASSIGN_OR_RETURN(const Value value, Evaluate(*statement.value));
  HYDRANT_RETURN_IF_ERROR(Assign(statement.target, value));
  return Flow::kNormal;
}

absl::StatusOr<Value> Evaluator::RunToString(const Body& body) {
  Capture capture(this);
  HYDRANT_RETURN_IF_ERROR(Run(body).status());
  return Value::String(capture.Take());
}

absl::StatusOr<Evaluator::Flow> Evaluator::Run(const SetBlock& statement) {
  Value value;
  {
    InnerScope scope(this);
    HYDRANT_ASSIGN_OR_RETURN(value, RunToString(statement.body));
    if (statement.filter != nullptr) {
      const Value* outer = std::exchange(filter_input_, &value);
      absl::StatusOr<Value> filtered = Evaluate(*statement.filter);
      filter_input_ = outer;
      HYDRANT_RETURN_IF_ERROR(filtered.status());
      value = *std::move(filtered);
    }
  }
  HYDRANT_RETURN_IF_ERROR(Assign(statement.target, value));
  return Flow::kNormal;
}

absl::StatusOr<Evaluator::Flow> Evaluator::Run(const WithStatement& statement) {
  // Values are evaluated outside the scope of the new names.
  std::vector<Value> values;
  for (const auto& [target, expression] : statement.variables) {
    HYDRANT_ASSIGN_OR_RETURN(Value value, Evaluate(*expression));
    values.push_back(std::move(value));
  }
  InnerScope scope(this);
  for (size_t i = 0; i < values.size(); ++i)
    HYDRANT_RETURN_IF_ERROR(Assign(statement.variables[i].first, values[i]));
  return Run(statement.body);
}

absl::StatusOr<Evaluator::Flow> Evaluator::Run(const FilterBlock& statement) {
  InnerScope scope(this);
  HYDRANT_ASSIGN_OR_RETURN(const Value text, RunToString(statement.body));
  const Value* outer = std::exchange(filter_input_, &text);
  const absl::StatusOr<Value> filtered = Evaluate(*statement.filter);
  filter_input_ = outer;
  HYDRANT_RETURN_IF_ERROR(filtered.status());
  HYDRANT_ASSIGN_OR_RETURN(const std::string written, ToText(&runtime_.budget(), *filtered));
  HYDRANT_RETURN_IF_ERROR(Write(written));
  return Flow::kNormal;
}

Value Evaluator::NewMacro(std::shared_ptr<const MacroDefinition> macro) {
  captured_.push_back(scope_);
  return Value(std::shared_ptr<Object>(std::make_shared<Macro>(this, std::move(macro), scope_)));
}

absl::StatusOr<Evaluator::Flow> Evaluator::Run(const MacroStatement& statement) {
  HYDRANT_RETURN_IF_ERROR(runtime_.budget().AllocateItems(16));
  scope_->Set(statement.macro->name, NewMacro(statement.macro));
  return Flow::kNormal;
}

absl::StatusOr<Evaluator::Flow> Evaluator::Run(const CallBlock& statement) {
  HYDRANT_RETURN_IF_ERROR(runtime_.budget().AllocateItems(16));
  InnerScope scope(this);
  const auto& call = std::get<CallExpression>(statement.call->node);
  HYDRANT_ASSIGN_OR_RETURN(const Value callee, Evaluate(*call.callee));
  HYDRANT_ASSIGN_OR_RETURN(Arguments arguments, EvaluateArguments(call.arguments));
  arguments.keywords.emplace_back("caller", NewMacro(statement.caller));
  HYDRANT_ASSIGN_OR_RETURN(const Value value, Call(callee, arguments));
  HYDRANT_ASSIGN_OR_RETURN(const std::string text, ToText(&runtime_.budget(), value));
  HYDRANT_RETURN_IF_ERROR(Write(text));
  return Flow::kNormal;
}

absl::StatusOr<Evaluator::Flow> Evaluator::Run(const GenerationBlock& statement) {
  InnerScope scope(this);
  return Run(statement.body);
}

absl::StatusOr<Evaluator::Flow> Evaluator::Run(const BreakStatement&) { return Flow::kBreak; }

absl::StatusOr<Evaluator::Flow> Evaluator::Run(const ContinueStatement&) { return Flow::kContinue; }

// By position, then by name, then the defaults, which see the parameters before them.
absl::Status Evaluator::BindParameters(const MacroDefinition& macro, const Arguments& arguments,
                                       bool has_caller) {
  const size_t count = macro.parameters.size();
  const size_t first_default = count - macro.defaults.size();
  for (size_t i = 0; i < count; ++i) {
    const std::string& name = macro.parameters[i];
    const Value* given =
        i < arguments.positional.size() ? &arguments.positional[i] : arguments.Keyword(name);
    if (given != nullptr) {
      scope_->Set(name, *given);
    } else if (i >= first_default) {
      HYDRANT_ASSIGN_OR_RETURN(Value value, Evaluate(*macro.defaults[i - first_default]));
      scope_->Set(name, std::move(value));
    } else {
      scope_->Set(name,
                  Value::UndefinedBecause(absl::StrCat("parameter '", name, "' was not provided")));
    }
  }
  if (arguments.positional.size() > count && !macro.uses_varargs) {
    return TypeError(
        absl::StrCat("macro '", macro.name, "' takes not more than ", count, " argument(s)"));
  }
  if (macro.uses_kwargs) return absl::OkStatus();
  for (const auto& [name, value] : arguments.keywords) {
    const auto found = std::find(macro.parameters.begin(), macro.parameters.end(), name);
    const bool free =
        found != macro.parameters.end() &&
        static_cast<size_t>(found - macro.parameters.begin()) >= arguments.positional.size();
    if (!free && !(name == "caller" && has_caller)) {
      return TypeError(
          absl::StrCat("macro '", macro.name, "' takes no keyword argument '", name, "'"));
    }
  }
  return absl::OkStatus();
}

// caller, varargs and kwargs, if the body names them.
absl::Status Evaluator::BindSpecials(const MacroDefinition& macro, const Arguments& arguments) {
  if (macro.uses_caller) {
    const Value* caller = arguments.Keyword("caller");
    scope_->Set("caller",
                caller != nullptr ? *caller : Value::UndefinedBecause("No caller defined"));
  }
  const size_t count = std::min(macro.parameters.size(), arguments.positional.size());
  if (macro.uses_varargs) {
    std::vector<Value> rest(arguments.positional.begin() + static_cast<std::ptrdiff_t>(count),
                            arguments.positional.end());
    HYDRANT_ASSIGN_OR_RETURN(
        Value varargs, runtime_.budget().NewSequence(Sequence::Kind::kTuple, std::move(rest)));
    scope_->Set("varargs", std::move(varargs));
  }
  if (!macro.uses_kwargs) return absl::OkStatus();
  Dict rest;
  for (const auto& [name, value] : arguments.keywords) {
    const bool taken = HasParameter(macro, name) || (name == "caller" && macro.uses_caller);
    if (!taken) rest.Set(name, value);
  }
  HYDRANT_ASSIGN_OR_RETURN(Value kwargs, runtime_.budget().NewDict(std::move(rest)));
  scope_->Set("kwargs", std::move(kwargs));
  return absl::OkStatus();
}

absl::StatusOr<Value> Evaluator::CallMacro(const MacroDefinition& macro,
                                           const std::shared_ptr<Scope>& scope,
                                           const Arguments& arguments) {
  InnerScope inner(this, scope);
  HYDRANT_RETURN_IF_ERROR(BindParameters(macro, arguments, macro.uses_caller));
  HYDRANT_RETURN_IF_ERROR(BindSpecials(macro, arguments));
  return RunToString(macro.body);
}

}  // namespace hydrant::jinja
