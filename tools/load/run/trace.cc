#include "tools/load/run/trace.h"

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <optional>
#include <sstream>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "kernels/status_macros.h"
#include "nlohmann/json.hpp"

namespace hydrant::load {
namespace {

constexpr std::string_view kAzureHeader = "TIMESTAMP,ContextTokens,GeneratedTokens";
constexpr int64_t kMaxTokens = 100'000'000;

struct Place {
  const std::string& name;
  int line = 0;

  absl::Status Error(std::string_view field, std::string_view what) const {
    return absl::InvalidArgumentError(
        absl::StrCat(name, ", line ", line, ", ", absl::string_view(field.data(), field.size()),
                     ": ", absl::string_view(what.data(), what.size())));
  }
};

std::string Excerpt(std::string_view text) {
  constexpr size_t kLimit = 60;
  return text.size() <= kLimit ? std::string(text) : std::string(text.substr(0, kLimit)) + "...";
}

absl::Status CheckTokens(const Place& place, std::string_view field, int64_t tokens) {
  if (tokens >= 0 && tokens <= kMaxTokens) return absl::OkStatus();
  return place.Error(field, absl::StrCat(tokens, " is outside [0, ", kMaxTokens, "]"));
}

absl::StatusOr<TracedRequest> ParseAzureLine(const Place& place, std::string_view line) {
  const std::vector<std::string> cells =
      absl::StrSplit(absl::string_view(line.data(), line.size()), ',');
  if (cells.size() != 3)
    return place.Error("columns", absl::StrCat(cells.size(), " cells, 3 are needed"));
  absl::Time time;
  std::string why;
  if (!absl::ParseTime("%Y-%m-%d %H:%M:%E*S", cells[0], &time, &why))
    return place.Error("TIMESTAMP", absl::StrCat("'", Excerpt(cells[0]), "': ", why));
  TracedRequest request;
  // Made relative to the first request later; microseconds since 1970 are exact in a double.
  request.at = absl::ToDoubleSeconds(time - absl::UnixEpoch());
  const std::pair<const char*, int64_t*> numbers[] = {{"ContextTokens", &request.input_tokens},
                                                      {"GeneratedTokens", &request.output_tokens}};
  for (size_t i = 0; i < 2; ++i) {
    const auto& [field, number] = numbers[i];
    if (!absl::SimpleAtoi(cells[i + 1], number))
      return place.Error(field, absl::StrCat("'", Excerpt(cells[i + 1]), "' is no whole number"));
    HYDRANT_RETURN_IF_ERROR(CheckTokens(place, field, *number));
  }
  return request;
}

absl::StatusOr<TracedRequest> ParseMooncakeLine(const Place& place, std::string_view line) {
  const nlohmann::json row = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (!row.is_object())
    return place.Error("row", absl::StrCat("'", Excerpt(line), "' is no JSON object"));
  TracedRequest request;
  const auto number = [&](const char* field) -> const nlohmann::json* {
    const auto found = row.find(field);
    return found != row.end() && found->is_number() ? &*found : nullptr;
  };
  const nlohmann::json* at = number("timestamp");
  if (at == nullptr) return place.Error("timestamp", "missing, or no number (milliseconds)");
  request.at = at->get<double>() / 1000;
  const std::pair<const char*, int64_t*> lengths[] = {{"input_length", &request.input_tokens},
                                                      {"output_length", &request.output_tokens}};
  for (const auto& [field, to] : lengths) {
    const nlohmann::json* length = number(field);
    if (length == nullptr || !length->is_number_integer())
      return place.Error(field, "missing, or no whole number");
    *to = length->get<int64_t>();
    HYDRANT_RETURN_IF_ERROR(CheckTokens(place, field, *to));
  }
  const auto hashes = row.find("hash_ids");
  if (hashes == row.end()) return request;
  const bool whole =
      hashes->is_array() && std::all_of(hashes->begin(), hashes->end(),
                                        [](const auto& id) { return id.is_number_integer(); });
  if (!whole) return place.Error("hash_ids", "not a list of whole numbers");
  request.hashes = hashes->get<std::vector<int64_t>>();
  return request;
}

void CountFromTheFirst(std::vector<TracedRequest>* requests) {
  std::stable_sort(requests->begin(), requests->end(),
                   [](const auto& a, const auto& b) { return a.at < b.at; });
  const double first = requests->front().at;
  for (TracedRequest& request : *requests) request.at -= first;
}

}  // namespace

absl::StatusOr<std::vector<TracedRequest>> ParseTrace(std::string_view text,
                                                      const std::string& name) {
  std::vector<TracedRequest> requests;
  Place place{name};
  std::optional<bool> azure;
  while (!text.empty()) {
    const size_t end = text.find('\n');
    std::string_view line = text.substr(0, end);
    text = end == std::string_view::npos ? std::string_view() : text.substr(end + 1);
    ++place.line;
    if (!line.empty() && line.back() == '\r') line.remove_suffix(1);
    if (line.empty()) continue;
    if (!azure.has_value()) {
      azure = line == kAzureHeader;
      if (*azure) continue;
      if (line.front() != '{') {
        return place.Error("header",
                           absl::StrCat("'", Excerpt(line), "' is neither '",
                                        absl::string_view(kAzureHeader.data(), kAzureHeader.size()),
                                        "' nor a JSON object"));
      }
    }
    HYDRANT_ASSIGN_OR_RETURN(TracedRequest request,
                             *azure ? ParseAzureLine(place, line) : ParseMooncakeLine(place, line));
    requests.push_back(std::move(request));
  }
  if (requests.empty()) return absl::InvalidArgumentError(absl::StrCat(name, ": holds no request"));
  CountFromTheFirst(&requests);
  return requests;
}

absl::StatusOr<std::vector<TracedRequest>> ReadTrace(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return absl::NotFoundError(absl::StrCat(path, ": cannot be opened"));
  const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  if (file.bad()) return absl::DataLossError(absl::StrCat(path, ": cannot be read"));
  return ParseTrace(text, path);
}

}  // namespace hydrant::load
