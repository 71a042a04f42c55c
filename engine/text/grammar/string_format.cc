#include "engine/text/grammar/string_format.h"

#include <vector>

#include "absl/strings/str_cat.h"

namespace hydrant {
namespace {

std::string OneOf(const std::vector<std::string>& patterns) {
  std::string out;
  for (const std::string& pattern : patterns)
    absl::StrAppend(&out, out.empty() ? "(?:" : "|", pattern);
  return out + ")";
}

// RFC 3339. Each month has its number of days; leap years are divisible by 4, and by 400 if they
// are divisible by 100.
std::string Date() {
  const std::string leap =
      R"((?:\d\d(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00))";
  return OneOf({R"(\d{4}-(?:0[13578]|1[02])-(?:0[1-9]|[12]\d|3[01]))",
                R"(\d{4}-(?:0[469]|11)-(?:0[1-9]|[12]\d|30))", R"(\d{4}-02-(?:0[1-9]|1\d|2[0-8]))",
                leap + "-02-29"});
}

std::string Time() {
  const std::string hours_and_minutes = R"((?:[01]\d|2[0-3]):[0-5]\d)";
  return absl::StrCat(hours_and_minutes, R"(:[0-5]\d(?:\.\d+)?(?:Z|[+-])", hours_and_minutes, ")");
}

// RFC 3339, appendix A.
std::string Duration() {
  const std::string time = R"(T(?:\d+H(?:\d+M(?:\d+S)?)?|\d+M(?:\d+S)?|\d+S))";
  const std::string date = R"((?:\d+D|\d+M(?:\d+D)?|\d+Y(?:\d+M(?:\d+D)?)?))";
  return absl::StrCat("P(?:", date, "(?:", time, ")?|", time, R"(|\d+W))");
}

std::string Ipv4() {
  const std::string byte = R"((?:25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d))";
  return absl::StrCat("(?:", byte, R"(\.){3})", byte);
}

// RFC 4291, section 2.2, without the forms that end in an IPv4 address.
std::string Ipv6() {
  const std::string group = "[0-9A-Fa-f]{1,4}";
  std::string out = absl::StrCat("(?:(?:", group, ":){7}", group, "|(?:", group, ":){1,7}:");
  for (int before = 6; before >= 1; --before) {
    absl::StrAppend(&out, "|(?:", group, ":){1,", before, "}(?::", group, "){1,", 7 - before, "}");
  }
  absl::StrAppend(&out, "|:(?:(?::", group, "){1,7}|:))");
  return out;
}

std::string Hostname() {
  const std::string label = "[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?";
  return absl::StrCat(label, R"((?:\.)", label, ")*");
}

// RFC 5322's dot-atom, an '@' and a host name.
std::string Email() {
  const std::string atom = "[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+";
  return absl::StrCat(atom, R"((?:\.)", atom, ")*@", Hostname());
}

std::string Uuid() { return "[0-9A-Fa-f]{8}-(?:[0-9A-Fa-f]{4}-){3}[0-9A-Fa-f]{12}"; }

// RFC 3986, without IP addresses in brackets.
struct Uri {
  static std::string Characters(const std::string& more) {
    return absl::StrCat("(?:[A-Za-z0-9._~!$&'()*+,;=", more, "-]|%[0-9A-Fa-f]{2})");
  }
  static std::string Authority() {
    return absl::StrCat("//(?:", Characters(":"), "*@)?", Characters(""), R"(*(?::\d*)?)");
  }
  static std::string QueryAndFragment() {
    const std::string text = Characters(":@/?");
    return absl::StrCat(R"((?:\?)", text, "*)?(?:#", text, "*)?");
  }
  // `first`: a character of the first segment, if the path does not begin with '/'.
  static std::string Parts(const std::string& first) {
    const std::string segment = Characters(":@"), more = absl::StrCat("(?:/", segment, "*)*");
    return absl::StrCat("(?:", Authority(), more, "|/(?:", segment, "+", more, ")?|", first, "+",
                        more, "|)", QueryAndFragment());
  }
  static std::string Absolute() {
    return absl::StrCat("[A-Za-z][A-Za-z0-9+.-]*:", Parts(Characters(":@")));
  }
  static std::string Reference() { return OneOf({Absolute(), Parts(Characters("@"))}); }
};

// RFC 6570.
std::string UriTemplate() {
  const std::string letter = "(?:[A-Za-z0-9_]|%[0-9A-Fa-f]{2})";
  const std::string name = absl::StrCat(letter, R"((?:\.?)", letter, ")*");
  const std::string variable = absl::StrCat(name, R"((?::[1-9]\d{0,3}|\*)?)");
  return absl::StrCat(R"((?:[!#$&(-;=?-\[\]_a-z~]|%[0-9A-Fa-f]{2}|\{[+#./;?&]?)", variable, "(?:,",
                      variable, R"()*\})*)");
}

std::string JsonPointer() { return "(?:/(?:[^/~]|~[01])*)*"; }

}  // namespace

std::optional<std::string> PatternOfFormat(std::string_view format) {
  if (format == "date") return Date();
  if (format == "time") return Time();
  if (format == "date-time") return absl::StrCat(Date(), "T", Time());
  if (format == "duration") return Duration();
  if (format == "email") return Email();
  if (format == "hostname") return Hostname();
  if (format == "ipv4") return Ipv4();
  if (format == "ipv6") return Ipv6();
  if (format == "uuid") return Uuid();
  if (format == "uri") return Uri::Absolute();
  if (format == "uri-reference") return Uri::Reference();
  if (format == "uri-template") return UriTemplate();
  if (format == "json-pointer") return JsonPointer();
  if (format == "relative-json-pointer")
    return absl::StrCat(R"((?:0|[1-9]\d*)(?:#|)", JsonPointer(), ")");
  return std::nullopt;
}

}  // namespace hydrant
