#include "engine/text/jinja/filters.h"

#include "absl/container/flat_hash_map.h"
#include "engine/text/jinja/filter_groups.h"

namespace hydrant::jinja {

Filter FindFilter(std::string_view name) {
  static const auto& filters = *[] {
    auto* all = new absl::flat_hash_map<std::string, Filter>();
    for (const auto group : {TextFilters(), ValueFilters(), SequenceFilters(), MappingFilters()}) {
      for (const NamedFilter& one : group) (*all)[std::string(one.name)] = one.filter;
    }
    return all;
  }();
  const auto found = filters.find(std::string(name));
  return found == filters.end() ? nullptr : found->second;
}

}  // namespace hydrant::jinja
