// Jinja's filters in groups, one file each. Stateless.
#ifndef HYDRANT_ENGINE_TEXT_JINJA_FILTER_GROUPS_H_
#define HYDRANT_ENGINE_TEXT_JINJA_FILTER_GROUPS_H_

#include <span>
#include <string_view>

#include "engine/text/jinja/filters.h"

namespace hydrant::jinja {

struct NamedFilter {
  std::string_view name;
  Filter filter;
};

std::span<const NamedFilter> TextFilters();      // of strings: trim, indent, ...
std::span<const NamedFilter> ValueFilters();     // of one value: default, int, tojson, ...
std::span<const NamedFilter> SequenceFilters();  // of iterables: join, sort, ...
std::span<const NamedFilter> MappingFilters();   // by a filter, test or attribute: map, select

}  // namespace hydrant::jinja

#endif  // HYDRANT_ENGINE_TEXT_JINJA_FILTER_GROUPS_H_
