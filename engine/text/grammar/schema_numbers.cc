#include "engine/text/grammar/schema_numbers.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "kernels/status_macros.h"

namespace hydrant {
namespace {

using Json = nlohmann::ordered_json;

// Limits of the library.
constexpr int64_t kMaxCount = std::numeric_limits<int32_t>::max();
constexpr int64_t kMaxMultipleOf = 1024;
constexpr int64_t kWidestMultipleOf = 10'000;

// The minimum 64-bit integer has no negation in 64 bits, so bounds are in [-kMaxInteger,
// kMaxInteger].
constexpr int64_t kMaxInteger = std::numeric_limits<int64_t>::max();

absl::Status Wrong(const std::string& keyword, const std::string& what) {
  return absl::InvalidArgumentError(absl::StrCat("'", keyword, "' ", what));
}

absl::StatusOr<double> NumberAt(const Json& schema, const std::string& keyword) {
  const Json& value = schema.at(keyword);
  if (value.is_number()) return value.get<double>();
  if (value.is_boolean()) return Wrong(keyword, "is a boolean; give the bound itself");
  return Wrong(keyword, "is no number");
}

// The nearest integer in [-kMaxInteger, kMaxInteger]; `round` rounds fractions.
int64_t IntegerOf(const Json& value, double (*round)(double)) {
  if (value.is_number_unsigned())
    return static_cast<int64_t>(std::min<uint64_t>(value.get<uint64_t>(), kMaxInteger));
  if (value.is_number_integer()) return std::max(value.get<int64_t>(), -kMaxInteger);
  const double rounded = round(value.get<double>());
  if (rounded >= static_cast<double>(kMaxInteger)) return kMaxInteger;
  if (rounded <= -static_cast<double>(kMaxInteger)) return -kMaxInteger;
  return static_cast<int64_t>(rounded);
}

absl::StatusOr<int64_t> CountAt(const Json& schema, const std::string& keyword) {
  const Json& value = schema.at(keyword);
  const bool is_count = value.is_number() && value.get<double>() >= 0 &&
                        std::trunc(value.get<double>()) == value.get<double>();
  if (!is_count) return Wrong(keyword, "is no whole number from 0 on");
  return IntegerOf(value, std::trunc);
}

struct Bounds {
  int64_t low = -kMaxInteger, high = kMaxInteger;
  bool has_low = false, has_high = false;
};

absl::StatusOr<Bounds> IntegerBounds(const Json& schema) {
  Bounds bounds;
  const auto raise = [&](int64_t low) {
    bounds.low = std::max(bounds.low, low);
    bounds.has_low = true;
  };
  const auto lower = [&](int64_t high) {
    bounds.high = std::min(bounds.high, high);
    bounds.has_high = true;
  };
  for (const char* keyword : {"minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum"}) {
    if (schema.contains(keyword)) HYDRANT_RETURN_IF_ERROR(NumberAt(schema, keyword).status());
  }
  if (schema.contains("minimum")) raise(IntegerOf(schema.at("minimum"), std::ceil));
  if (schema.contains("maximum")) lower(IntegerOf(schema.at("maximum"), std::floor));
  if (schema.contains("exclusiveMinimum")) {
    const int64_t above = IntegerOf(schema.at("exclusiveMinimum"), std::floor);
    if (above == kMaxInteger) return Wrong("exclusiveMinimum", "is above all 64-bit integers");
    raise(above + 1);
  }
  if (schema.contains("exclusiveMaximum")) {
    const int64_t below = IntegerOf(schema.at("exclusiveMaximum"), std::ceil);
    if (below == -kMaxInteger) return Wrong("exclusiveMaximum", "is below all 64-bit integers");
    lower(below - 1);
  }
  if (bounds.low > bounds.high) return Wrong("minimum", "is above 'maximum': no integer is left");
  return bounds;
}

absl::Status CheckMultipleOf(const Json& multiple_of, const Bounds& bounds) {
  const bool is_supported = multiple_of.is_number() && multiple_of >= 1 &&
                            multiple_of <= kMaxMultipleOf &&
                            std::trunc(multiple_of.get<double>()) == multiple_of.get<double>();
  if (!is_supported) {
    return Wrong("multipleOf", absl::StrCat("is no whole number from 1 to ", kMaxMultipleOf));
  }
  if (!bounds.has_low && !bounds.has_high) return absl::OkStatus();
  const bool is_narrow = bounds.has_low && bounds.has_high &&
                         static_cast<double>(bounds.high) - static_cast<double>(bounds.low) <
                             static_cast<double>(kWidestMultipleOf);
  if (!is_narrow) {
    return Wrong("multipleOf", absl::StrCat("beside a bound is supported where 'minimum' and "
                                            "'maximum' are both there, and less than ",
                                            kWidestMultipleOf, " apart"));
  }
  const auto factor = static_cast<int64_t>(multiple_of.get<double>());
  for (int64_t value = bounds.low; value <= bounds.high; ++value) {
    if (value % factor == 0) return absl::OkStatus();
  }
  return Wrong("multipleOf", "has no multiple between 'minimum' and 'maximum'");
}

}  // namespace

absl::Status NormalizeCounts(const std::string& least, const std::string& most, Json* schema) {
  int64_t at_least = 0;
  if (schema->contains(least)) {
    HYDRANT_ASSIGN_OR_RETURN(at_least, CountAt(*schema, least));
    if (at_least > kMaxCount) return Wrong(least, absl::StrCat("is above ", kMaxCount));
    (*schema)[least] = at_least;
  }
  if (!schema->contains(most)) return absl::OkStatus();
  HYDRANT_ASSIGN_OR_RETURN(const int64_t at_most, CountAt(*schema, most));
  if (at_most < at_least) return Wrong(least, absl::StrCat("is above '", most, "'"));
  if (at_most > kMaxCount) {
    schema->erase(most);
  } else {
    (*schema)[most] = at_most;
  }
  return absl::OkStatus();
}

absl::Status NormalizeIntegerBounds(Json* schema) {
  HYDRANT_ASSIGN_OR_RETURN(const Bounds bounds, IntegerBounds(*schema));
  for (const char* keyword : {"minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum"}) {
    schema->erase(keyword);
  }
  if (bounds.has_low) (*schema)["minimum"] = bounds.low;
  if (bounds.has_high) (*schema)["maximum"] = bounds.high;
  if (!schema->contains("multipleOf")) return absl::OkStatus();
  HYDRANT_RETURN_IF_ERROR(CheckMultipleOf(schema->at("multipleOf"), bounds));
  (*schema)["multipleOf"] = static_cast<int64_t>(schema->at("multipleOf").get<double>());
  return absl::OkStatus();
}

absl::Status CheckNumberBounds(const Json& schema) {
  if (schema.contains("multipleOf")) {
    return Wrong("multipleOf", "is supported beside 'type' \"integer\" alone");
  }
  const std::pair<const char*, const char*> pairs[] = {{"minimum", "maximum"},
                                                       {"minimum", "exclusiveMaximum"},
                                                       {"exclusiveMinimum", "maximum"},
                                                       {"exclusiveMinimum", "exclusiveMaximum"}};
  for (const auto& [low, high] : pairs) {
    std::optional<double> at_least, at_most;
    if (schema.contains(low)) {
      HYDRANT_ASSIGN_OR_RETURN(at_least, NumberAt(schema, low));
    }
    if (schema.contains(high)) {
      HYDRANT_ASSIGN_OR_RETURN(at_most, NumberAt(schema, high));
    }
    if (!at_least.has_value() || !at_most.has_value()) continue;
    const bool is_closed =
        std::string_view(low) == "minimum" && std::string_view(high) == "maximum";
    if (*at_least < *at_most || (is_closed && *at_least == *at_most)) continue;
    return Wrong(low, absl::StrCat("leaves no number below '", high, "'"));
  }
  return absl::OkStatus();
}

}  // namespace hydrant
