#include "server/startup/nearest_name.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace hydrant {
namespace {

size_t EditDistance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = std::exchange(row[0], i);
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t replaced = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = std::exchange(row[j], std::min({row[j] + 1, row[j - 1] + 1, replaced}));
    }
  }
  return row.back();
}

}  // namespace

std::string NearestName(std::string_view name, const std::vector<std::string>& known) {
  constexpr size_t kLeastBeginning = 3;
  const auto distance = [name](const std::string& other) {
    const bool begins = name.size() >= kLeastBeginning && other.starts_with(name);
    return std::pair(!begins, EditDistance(name, other));
  };
  const auto nearest = std::ranges::min_element(known, {}, distance);
  return nearest == known.end() ? "" : *nearest;
}

}  // namespace hydrant
