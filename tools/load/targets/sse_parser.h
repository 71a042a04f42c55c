// Server-sent events (WHATWG HTML, section 9.2) for OpenAI's API: only data is used. Not thread
// safe.
#ifndef HYDRANT_TOOLS_LOAD_TARGETS_SSE_PARSER_H_
#define HYDRANT_TOOLS_LOAD_TARGETS_SSE_PARSER_H_

#include <functional>
#include <string>
#include <string_view>

namespace hydrant::load {

class SseParser {
 public:
  // Bytes in arbitrary pieces. `take` gets the data of each completed event.
  void Feed(std::string_view bytes, const std::function<void(std::string_view data)>& take);

 private:
  void TakeLine(std::string_view line, const std::function<void(std::string_view)>& take);

  std::string line_;  // incomplete
  std::string data_;
  bool has_data_ = false;
};

}  // namespace hydrant::load

#endif  // HYDRANT_TOOLS_LOAD_TARGETS_SSE_PARSER_H_
