#include "tools/load/report/report_page.h"

#include <string_view>

#include "nlohmann/json.hpp"
#include "tools/load/report/report_page_html.h"

namespace hydrant::load {

std::string ReportPage(const nlohmann::ordered_json& data) {
  using Json = nlohmann::ordered_json;
  std::string text = data.dump(-1, ' ', false, Json::error_handler_t::replace);
  // '<' occurs only within JSON strings; escaped, no text can end the script element.
  for (size_t at = 0; (at = text.find('<', at)) != std::string::npos;)
    text.replace(at, 1, "\\u003c");
  std::string page = kLoadReportPage;
  constexpr std::string_view kPlace = "/*DATA*/";
  page.replace(page.find(kPlace), kPlace.size(), text);
  return page;
}

}  // namespace hydrant::load
