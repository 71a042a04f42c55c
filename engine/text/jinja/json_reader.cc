#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "engine/text/jinja/json.h"

namespace hydrant::jinja {
namespace {

// Receives the parser's events and builds values from the innermost container outwards.
class Builder {
 public:
  explicit Builder(const Limits& limits) : limits_(limits) {}

  Value TakeResult() { return std::move(result_); }
  const std::string& error() const { return error_; }

  // The names are the library's.
  // NOLINTBEGIN(readability-identifier-naming)
  bool null() { return Add(Value(None{})); }
  bool boolean(bool value) { return Add(Value(value)); }
  bool number_integer(int64_t value) { return Add(Value(value)); }
  bool number_unsigned(uint64_t value) {
    if (value > static_cast<uint64_t>(INT64_MAX)) return Fail("an integer beyond 64 bits");
    return Add(Value(static_cast<int64_t>(value)));
  }
  bool number_float(double value, const std::string& text) {
    // The library reads an integer beyond 64 bits as a float.
    if (text.find_first_of(".eE") == std::string::npos) return Fail("an integer beyond 64 bits");
    return Add(Value(value));
  }
  bool string(std::string& value) { return Add(Value::String(std::move(value))); }
  bool binary(std::vector<uint8_t>&) { return false; }
  bool start_object(size_t) { return Open(/*is_object=*/true); }
  bool start_array(size_t) { return Open(/*is_object=*/false); }
  bool key(std::string& name) {
    open_.back().key = Value::String(std::move(name));
    return true;
  }
  bool end_object() {
    auto dict = std::make_shared<const Dict>(std::move(open_.back().dict));
    open_.pop_back();
    return Add(Value(std::move(dict)));
  }
  bool end_array() {
    auto list = std::make_shared<Sequence>(Sequence::Kind::kList, std::move(open_.back().items));
    open_.pop_back();
    return Add(Value(std::move(list)));
  }
  bool parse_error(size_t position, const std::string&, const nlohmann::json::exception&) {
    error_ = absl::StrCat("is not JSON at byte ", position > 0 ? position - 1 : 0);
    return false;
  }
  // NOLINTEND(readability-identifier-naming)

 private:
  struct Container {
    bool is_object;
    Dict dict;
    Value key;
    std::vector<Value> items;
  };

  bool Fail(const std::string& what) {
    error_ = absl::StrCat("has ", what);
    return false;
  }

  bool Open(bool is_object) {
    // The other half is for the caller's containers around this value: a list of messages, or of
    // tools.
    const int most = limits_.max_nesting / 2;
    if (static_cast<int>(open_.size()) >= most)
      return Fail(absl::StrCat("nesting deeper than ", most));
    open_.push_back({is_object, {}, {}, {}});
    return true;
  }

  bool Add(Value value) {
    if (open_.empty()) {
      result_ = std::move(value);
    } else if (open_.back().is_object) {
      open_.back().dict.Set(open_.back().key, std::move(value));
    } else {
      open_.back().items.push_back(std::move(value));
    }
    return true;
  }

  const Limits limits_;
  std::vector<Container> open_;
  Value result_;
  std::string error_;
};

}  // namespace

absl::StatusOr<Value> ParseJson(std::string_view text, const Limits& limits) {
  Builder builder(limits);
  if (!nlohmann::json::sax_parse(text, &builder))
    return absl::InvalidArgumentError(builder.error());
  return builder.TakeResult();
}

}  // namespace hydrant::jinja
