#include "engine/text/jinja/parser.h"

#include <algorithm>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "engine/text/jinja/expression_parser.h"
#include "engine/text/jinja/globals.h"
#include "kernels/status_macros.h"

namespace hydrant::jinja {
namespace {

// Jinja's tags that need other templates, and one for HTML.
constexpr std::string_view kRefusedTags[] = {"autoescape", "block",  "extends",
                                             "from",       "import", "include"};

class Parser {
 public:
  Parser(std::vector<Token> tokens, const Limits& limits)
      : tokens_(std::move(tokens)), expressions_(&tokens_, limits), limits_(limits) {}

  absl::StatusOr<Body> Run() {
    HYDRANT_ASSIGN_OR_RETURN(Body body, ParseBody({}));
    if (!tokens_.AtEnd()) return tokens_.Unexpected("the end of the template");
    HYDRANT_RETURN_IF_ERROR(CheckUses());
    return body;
  }

 private:
  // Parses up to one of the tags `ends`, which is then the current token; without `ends` up to the
  // template's end.
  absl::StatusOr<Body> ParseBody(std::initializer_list<std::string_view> ends) {
    if (++nesting_ > limits_.max_nesting)
      return tokens_.Fail(absl::StrCat("statements nest deeper than ", limits_.max_nesting));
    Body body;
    while (!tokens_.AtEnd()) {
      const Token& token = tokens_.Take();
      if (token.kind == Token::Kind::kData) {
        body.push_back({token.line, TextOutput{Value::String(token.text)}});
      } else if (token.kind == Token::Kind::kExpressionBegin) {
        HYDRANT_RETURN_IF_ERROR(ParseOutput(&body));
      } else {
        const auto is_end = [&](std::string_view end) { return tokens_.Current().IsName(end); };
        if (std::any_of(ends.begin(), ends.end(), is_end)) {
          --nesting_;
          return body;
        }
        HYDRANT_RETURN_IF_ERROR(ParseStatement(&body));
      }
    }
    --nesting_;
    if (ends.size() == 0) return body;
    return tokens_.Fail(absl::StrCat("the template ends where {% ",
                                     std::string(*std::prev(ends.end())), " %} is missing"));
  }

  absl::Status ParseOutput(Body* body) {
    const int line = tokens_.line();
    HYDRANT_ASSIGN_OR_RETURN(ExpressionPtr expression, expressions_.ParseTuple());
    HYDRANT_RETURN_IF_ERROR(tokens_.Expect(Token::Kind::kExpressionEnd, "}}"));
    body->push_back({line, Output{std::move(expression)}});
    return absl::OkStatus();
  }

  // The end of a block's opening tag. A colon before it is allowed, as in Jinja.
  absl::Status EndTag() {
    tokens_.TakeIfOperator(":");
    return tokens_.Expect(Token::Kind::kStatementEnd, "%}");
  }

  // A block's body and its closing tag's name; ParseStatement() reads the tag's end.
  absl::StatusOr<Body> ParseBlock(std::string_view end) {
    HYDRANT_RETURN_IF_ERROR(EndTag());
    HYDRANT_ASSIGN_OR_RETURN(Body body, ParseBody({end}));
    tokens_.Take();
    return body;
  }

  template <typename Node>
  absl::Status Add(int line, absl::StatusOr<Node> node, Body* body) {
    HYDRANT_RETURN_IF_ERROR(node.status());
    body->push_back({line, *std::move(node)});
    return absl::OkStatus();
  }

  absl::Status ParseStatement(Body* body) {
    HYDRANT_RETURN_IF_ERROR(ParseTag(body));
    return tokens_.Expect(Token::Kind::kStatementEnd, "%}");
  }

  absl::Status ParseTag(Body* body) {
    const int line = tokens_.line();
    HYDRANT_ASSIGN_OR_RETURN(const std::string tag, tokens_.ExpectName());
    if (tag == "if") return Add(line, ParseIf(), body);
    if (tag == "for") return Add(line, ParseFor(), body);
    if (tag == "set") return ParseSet(line, body);
    if (tag == "macro") return Add(line, ParseMacro(), body);
    if (tag == "call") return Add(line, ParseCallBlock(), body);
    if (tag == "filter") return Add(line, ParseFilterBlock(), body);
    if (tag == "with") return Add(line, ParseWith(), body);
    if (tag == "print") return ParsePrint(line, body);
    if (tag == "generation") return Add(line, ParseGeneration(), body);
    if (tag == "break" || tag == "continue") return ParseLoopControl(line, tag, body);
    if (std::find(std::begin(kRefusedTags), std::end(kRefusedTags), tag) !=
        std::end(kRefusedTags)) {
      return absl::UnimplementedError(
          absl::StrCat("line ", line, ": the tag '", tag, "' is not supported"));
    }
    return ErrorAtLine(line, absl::StrCat("Encountered unknown tag '", tag, "'."));
  }

  absl::StatusOr<IfStatement> ParseIf() {
    IfStatement statement;
    const size_t uses = expressions_.uses().size();
    while (true) {
      HYDRANT_ASSIGN_OR_RETURN(ExpressionPtr condition,
                               expressions_.ParseTuple(/*with_conditional=*/false));
      HYDRANT_RETURN_IF_ERROR(EndTag());
      HYDRANT_ASSIGN_OR_RETURN(Body body, ParseBody({"elif", "else", "endif"}));
      statement.branches.emplace_back(std::move(condition), std::move(body));
      if (!tokens_.TakeIfName("elif")) break;
    }
    if (tokens_.TakeIfName("else")) {
      HYDRANT_RETURN_IF_ERROR(EndTag());
      HYDRANT_ASSIGN_OR_RETURN(statement.otherwise, ParseBody({"endif"}));
    }
    expressions_.ForgetUsesAfter(uses);
    tokens_.Take();
    return statement;
  }

  absl::StatusOr<ForStatement> ParseFor() {
    ForStatement statement;
    HYDRANT_ASSIGN_OR_RETURN(statement.target,
                             expressions_.ParseTarget(/*with_namespace=*/false, "in"));
    Bind(statement.target);
    HYDRANT_RETURN_IF_ERROR(tokens_.Expect(Token::Kind::kName, "in"));
    HYDRANT_ASSIGN_OR_RETURN(statement.items,
                             expressions_.ParseTuple(/*with_conditional=*/false, "recursive"));
    if (tokens_.TakeIfName("if")) {
      HYDRANT_ASSIGN_OR_RETURN(statement.condition, expressions_.Parse());
    }
    if (tokens_.Current().IsName("recursive")) {
      return absl::UnimplementedError(
          absl::StrCat("line ", tokens_.line(), ": a recursive for loop is not supported"));
    }
    HYDRANT_RETURN_IF_ERROR(EndTag());
    ++loops_;
    HYDRANT_ASSIGN_OR_RETURN(statement.body, ParseBody({"else", "endfor"}));
    --loops_;
    if (tokens_.TakeIfName("else")) {
      HYDRANT_RETURN_IF_ERROR(EndTag());
      HYDRANT_ASSIGN_OR_RETURN(statement.otherwise, ParseBody({"endfor"}));
    }
    tokens_.Take();
    return statement;
  }

  absl::Status ParseLoopControl(int line, const std::string& tag, Body* body) {
    if (loops_ == 0) return ErrorAtLine(line, absl::StrCat("'", tag, "' outside of a loop"));
    if (tag == "break") {
      body->push_back({line, BreakStatement{}});
    } else {
      body->push_back({line, ContinueStatement{}});
    }
    return absl::OkStatus();
  }

  absl::Status ParseSet(int line, Body* body) {
    HYDRANT_ASSIGN_OR_RETURN(Target target, expressions_.ParseTarget(/*with_namespace=*/true));
    Bind(target);
    if (tokens_.TakeIfOperator("=")) {
      HYDRANT_ASSIGN_OR_RETURN(ExpressionPtr value, expressions_.ParseTuple());
      body->push_back({line, SetStatement{std::move(target), std::move(value)}});
      return absl::OkStatus();
    }
    SetBlock block{std::move(target), nullptr, {}};
    if (tokens_.TakeIfOperator("|")) {
      HYDRANT_ASSIGN_OR_RETURN(block.filter, expressions_.ParseFilterChain());
    }
    HYDRANT_ASSIGN_OR_RETURN(block.body, ParseBlock("endset"));
    body->push_back({line, std::move(block)});
    return absl::OkStatus();
  }

  absl::Status ParseParameters(MacroDefinition* macro) {
    HYDRANT_RETURN_IF_ERROR(tokens_.ExpectOperator("("));
    while (!tokens_.Current().IsOperator(")")) {
      HYDRANT_ASSIGN_OR_RETURN(std::string name, tokens_.ExpectName());
      bound_.insert(name);
      macro->parameters.push_back(std::move(name));
      if (tokens_.TakeIfOperator("=")) {
        HYDRANT_ASSIGN_OR_RETURN(ExpressionPtr value, expressions_.Parse());
        macro->defaults.push_back(std::move(value));
      } else if (!macro->defaults.empty()) {
        return tokens_.Fail("non-default argument follows default argument");
      }
      if (!tokens_.TakeIfOperator(",")) break;
    }
    return tokens_.ExpectOperator(")");
  }

  absl::Status ParseMacroBody(std::string_view end, MacroDefinition* macro) {
    absl::flat_hash_set<std::string> names;
    const int loops = std::exchange(loops_, 0);
    expressions_.StartRecording(&names);
    HYDRANT_ASSIGN_OR_RETURN(macro->body, ParseBlock(end));
    expressions_.StopRecording();
    loops_ = loops;
    const auto uses = [&](const std::string& name) {
      const bool is_parameter = std::find(macro->parameters.begin(), macro->parameters.end(),
                                          name) != macro->parameters.end();
      return names.contains(name) && !is_parameter;
    };
    macro->uses_caller = uses("caller");
    macro->uses_varargs = uses("varargs");
    macro->uses_kwargs = uses("kwargs");
    return absl::OkStatus();
  }

  absl::StatusOr<MacroStatement> ParseMacro() {
    auto macro = std::make_shared<MacroDefinition>();
    HYDRANT_ASSIGN_OR_RETURN(macro->name, tokens_.ExpectName());
    bound_.insert(macro->name);
    HYDRANT_RETURN_IF_ERROR(ParseParameters(macro.get()));
    HYDRANT_RETURN_IF_ERROR(ParseMacroBody("endmacro", macro.get()));
    return MacroStatement{std::move(macro)};
  }

  absl::StatusOr<CallBlock> ParseCallBlock() {
    auto caller = std::make_shared<MacroDefinition>();
    caller->name = "caller";
    if (tokens_.Current().IsOperator("(")) HYDRANT_RETURN_IF_ERROR(ParseParameters(caller.get()));
    CallBlock block;
    HYDRANT_ASSIGN_OR_RETURN(block.call, expressions_.Parse());
    if (!std::holds_alternative<CallExpression>(block.call->node))
      return tokens_.Fail("expected call");
    HYDRANT_RETURN_IF_ERROR(ParseMacroBody("endcall", caller.get()));
    block.caller = std::move(caller);
    return block;
  }

  absl::StatusOr<FilterBlock> ParseFilterBlock() {
    FilterBlock block;
    HYDRANT_ASSIGN_OR_RETURN(block.filter, expressions_.ParseFilterChain());
    HYDRANT_ASSIGN_OR_RETURN(block.body, ParseBlock("endfilter"));
    return block;
  }

  absl::StatusOr<WithStatement> ParseWith() {
    WithStatement statement;
    while (tokens_.Current().kind == Token::Kind::kName) {
      HYDRANT_ASSIGN_OR_RETURN(Target target, expressions_.ParseTarget(/*with_namespace=*/false));
      Bind(target);
      HYDRANT_RETURN_IF_ERROR(tokens_.ExpectOperator("="));
      HYDRANT_ASSIGN_OR_RETURN(ExpressionPtr value, expressions_.Parse());
      statement.variables.emplace_back(std::move(target), std::move(value));
      if (!tokens_.TakeIfOperator(",")) break;
    }
    HYDRANT_ASSIGN_OR_RETURN(statement.body, ParseBlock("endwith"));
    return statement;
  }

  absl::Status ParsePrint(int line, Body* body) {
    while (tokens_.Current().kind != Token::Kind::kStatementEnd) {
      HYDRANT_ASSIGN_OR_RETURN(ExpressionPtr expression, expressions_.Parse());
      body->push_back({line, Output{std::move(expression)}});
      if (!tokens_.TakeIfOperator(",")) break;
    }
    return absl::OkStatus();
  }

  absl::StatusOr<GenerationBlock> ParseGeneration() {
    GenerationBlock block;
    HYDRANT_ASSIGN_OR_RETURN(block.body, ParseBlock("endgeneration"));
    return block;
  }

  void Bind(const Target& target) {
    if (target.attribute.empty() && !target.name.empty()) bound_.insert(target.name);
    for (const Target& item : target.items) Bind(item);
  }

  // Reports unknown filters and tests. Input variables are never functions, so a called name must
  // be a global or bound by the template.
  absl::Status CheckUses() const {
    for (const ExpressionParser::Use& use : expressions_.uses()) {
      const bool is_bound = bound_.contains(use.name) || use.name == "caller" || use.name == "loop";
      if (use.kind == "function" && (is_bound || IsGlobal(use.name))) continue;
      return ErrorAtLine(use.line, absl::StrCat("no ", use.kind, " named '", use.name, "'"));
    }
    return absl::OkStatus();
  }

  TokenStream tokens_;
  ExpressionParser expressions_;
  const Limits limits_;
  int nesting_ = 0;
  int loops_ = 0;                           // open within the macro
  absl::flat_hash_set<std::string> bound_;  // by set, for, with, macro, and as parameters
};

}  // namespace

absl::StatusOr<Body> ParseTemplate(std::string_view source, const Limits& limits) {
  if (source.size() > limits.max_template_bytes) {
    return absl::InvalidArgumentError(absl::StrCat("has ", source.size(), " bytes; at most ",
                                                   limits.max_template_bytes, " are allowed"));
  }
  HYDRANT_ASSIGN_OR_RETURN(std::vector<Token> tokens, Tokenize(source));
  return Parser(std::move(tokens), limits).Run();
}

}  // namespace hydrant::jinja
