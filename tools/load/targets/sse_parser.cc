#include "tools/load/targets/sse_parser.h"

namespace hydrant::load {

void SseParser::Feed(std::string_view bytes,
                     const std::function<void(std::string_view data)>& take) {
  while (true) {
    const size_t end = bytes.find('\n');
    line_.append(bytes.substr(0, end));
    if (end == std::string_view::npos) return;
    if (!line_.empty() && line_.back() == '\r') line_.pop_back();
    TakeLine(line_, take);
    line_.clear();
    bytes.remove_prefix(end + 1);
  }
}

void SseParser::TakeLine(std::string_view line, const std::function<void(std::string_view)>& take) {
  constexpr std::string_view kData = "data:";
  if (line.empty()) {
    if (has_data_) take(data_);
    data_.clear();
    has_data_ = false;
    return;
  }
  if (line.substr(0, kData.size()) != kData) return;  // a comment, an id, an event's name
  line.remove_prefix(kData.size());
  if (!line.empty() && line.front() == ' ') line.remove_prefix(1);
  if (has_data_) data_ += '\n';
  data_ += line;
  has_data_ = true;
}

}  // namespace hydrant::load
