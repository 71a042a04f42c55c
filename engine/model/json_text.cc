#include "engine/model/json_text.h"

#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "engine/model/text.h"
#include "kernels/status_macros.h"

namespace hydrant {
namespace {

constexpr int kMaxDepth = 32;

// Builds the value and rejects repeated keys and great depth, which the library accepts.
template <typename Json>
class StrictBuilder : public nlohmann::detail::json_sax_dom_parser<Json> {
 public:
  using Base = nlohmann::detail::json_sax_dom_parser<Json>;
  StrictBuilder(Json& root, int max_depth)
      : Base(root, /*allow_exceptions_=*/false), max_depth_(max_depth) {}

  bool start_object(std::size_t size) {
    keys_.emplace_back();
    return CheckDepth() && Base::start_object(size);
  }
  bool end_object() {
    keys_.pop_back();
    return Base::end_object();
  }
  bool start_array(std::size_t size) {
    keys_.emplace_back();
    return CheckDepth() && Base::start_array(size);
  }
  bool end_array() {
    keys_.pop_back();
    return Base::end_array();
  }
  bool key(std::string& name) {
    if (keys_.back().insert(name).second) return Base::key(name);
    error_ = absl::StrCat("key ", Quoted(name), " appears twice");
    return false;
  }
  bool parse_error(std::size_t position, const std::string&, const nlohmann::json::exception&) {
    error_ = absl::StrCat("not valid JSON at byte ", position);
    return false;
  }
  const std::string& error() const { return error_; }

 private:
  bool CheckDepth() {
    if (keys_.size() <= static_cast<size_t>(max_depth_)) return true;
    error_ = absl::StrCat("JSON nested deeper than ", max_depth_);
    return false;
  }

  const int max_depth_;
  std::vector<std::set<std::string>> keys_;  // one set per open object or array
  std::string error_;
};

template <typename Json>
absl::StatusOr<Json> Parse(std::string_view text, int max_depth) {
  Json root;
  StrictBuilder<Json> builder(root, max_depth);
  if (!Json::sax_parse(text.begin(), text.end(), &builder)) {
    return absl::InvalidArgumentError(builder.error().empty() ? "not valid JSON" : builder.error());
  }
  return root;
}

}  // namespace

absl::StatusOr<nlohmann::json> ParseJson(std::string_view text) {
  return Parse<nlohmann::json>(text, kMaxDepth);
}

absl::StatusOr<nlohmann::ordered_json> ParseOrderedJson(std::string_view text, int max_depth) {
  return Parse<nlohmann::ordered_json>(text, max_depth);
}

absl::StatusOr<nlohmann::json> ParseJsonObject(std::string_view text) {
  HYDRANT_ASSIGN_OR_RETURN(nlohmann::json root, ParseJson(text));
  if (!root.is_object()) return absl::InvalidArgumentError("not a JSON object");
  return root;
}

}  // namespace hydrant
