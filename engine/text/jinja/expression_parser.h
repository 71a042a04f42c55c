// The expression part of the parser. One object per template; used by one thread.
#ifndef HYDRANT_ENGINE_TEXT_JINJA_EXPRESSION_PARSER_H_
#define HYDRANT_ENGINE_TEXT_JINJA_EXPRESSION_PARSER_H_

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/status/statusor.h"
#include "engine/text/jinja/ast.h"
#include "engine/text/jinja/limits.h"
#include "engine/text/jinja/token_stream.h"

namespace hydrant::jinja {

class ExpressionParser {
 public:
  // Borrows the stream.
  ExpressionParser(TokenStream* tokens, const Limits& limits) : tokens_(*tokens), limits_(limits) {}

  absl::StatusOr<ExpressionPtr> Parse(bool with_conditional = true);
  // An expression, or a tuple without parentheses. `end_name` also ends it.
  absl::StatusOr<ExpressionPtr> ParseTuple(bool with_conditional = true,
                                           std::string_view end_name = "");
  // name(arguments)|name..., applied to a block's text. The stream is at the first name.
  absl::StatusOr<ExpressionPtr> ParseFilterChain();
  absl::StatusOr<Target> ParseTarget(bool with_namespace, std::string_view end_name = "");

  // A use of a name that may be undefined.
  struct Use {
    std::string kind;  // "filter", "test": unknown; "function": if the template does not bind it
    std::string name;
    int line;
  };
  const std::vector<Use>& uses() const { return uses_; }
  // Names used in a conditional branch are looked up when the branch runs: as in Jinja, the
  // template may have tested for them.
  void ForgetUsesAfter(size_t count) { uses_.resize(std::min(count, uses_.size())); }

  // Records names read from now on into `names`; used for a macro's body.
  void StartRecording(absl::flat_hash_set<std::string>* names) { recorders_.push_back(names); }
  void StopRecording() { recorders_.pop_back(); }

 private:
  absl::StatusOr<ExpressionPtr> ParseConditional();
  absl::StatusOr<ExpressionPtr> ParseOr();
  absl::StatusOr<ExpressionPtr> ParseAnd();
  absl::StatusOr<ExpressionPtr> ParseNot();
  absl::StatusOr<ExpressionPtr> ParseComparison();
  absl::StatusOr<ExpressionPtr> ParseSum();
  absl::StatusOr<ExpressionPtr> ParseConcatenation();
  absl::StatusOr<ExpressionPtr> ParseProduct();
  absl::StatusOr<ExpressionPtr> ParsePower();
  absl::StatusOr<ExpressionPtr> ParseUnary(bool with_filter);
  absl::StatusOr<ExpressionPtr> ParsePrimary();
  absl::StatusOr<ExpressionPtr> ParseName();
  absl::StatusOr<ExpressionPtr> ParseStrings();
  absl::StatusOr<ExpressionPtr> ParseList();
  absl::StatusOr<ExpressionPtr> ParseDict();
  absl::StatusOr<ExpressionPtr> ParsePostfix(ExpressionPtr expression);
  absl::StatusOr<ExpressionPtr> ParseFilters(ExpressionPtr expression);
  absl::StatusOr<ExpressionPtr> ParseAttribute(ExpressionPtr object);
  absl::StatusOr<ExpressionPtr> ParseSubscript(ExpressionPtr object);
  absl::StatusOr<ExpressionPtr> ParseSlice(ExpressionPtr object, ExpressionPtr start, int line);
  absl::StatusOr<ExpressionPtr> ParseCall(ExpressionPtr callee);
  absl::StatusOr<ExpressionPtr> ParseFilter(ExpressionPtr input);
  absl::StatusOr<ExpressionPtr> ParseTest(ExpressionPtr input);
  absl::StatusOr<CallArguments> ParseArguments();
  absl::Status ParseArgument(CallArguments* arguments);
  absl::StatusOr<std::string> ParseDottedName();
  absl::StatusOr<Target> ParseSimpleTarget(bool with_namespace);

  bool IsTupleEnd(std::string_view end_name) const;
  template <typename Node>
  absl::StatusOr<ExpressionPtr> Make(int line, int height_below, Node node);

  TokenStream& tokens_;
  const Limits limits_;
  int nesting_ = 0;
  std::vector<Use> uses_;
  std::vector<absl::flat_hash_set<std::string>*> recorders_;
};

}  // namespace hydrant::jinja

#endif  // HYDRANT_ENGINE_TEXT_JINJA_EXPRESSION_PARSER_H_
