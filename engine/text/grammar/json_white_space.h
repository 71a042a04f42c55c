// Counts trailing white space between two tokens of a JSON text. Not thread safe.
#ifndef HYDRANT_ENGINE_TEXT_GRAMMAR_JSON_WHITE_SPACE_H_
#define HYDRANT_ENGINE_TEXT_GRAMMAR_JSON_WHITE_SPACE_H_

#include <string_view>

namespace hydrant {

class JsonWhiteSpace {
 public:
  static bool Is(char c) { return c == ' ' || c == '\n' || c == '\r' || c == '\t'; }

  // Appends bytes to the text.
  void Push(std::string_view bytes) {
    for (const char c : bytes) {
      length_ = !in_string_ && Is(c) ? length_ + 1 : 0;
      if (!is_escaped_ && c == '"') in_string_ = !in_string_;
      is_escaped_ = in_string_ && !is_escaped_ && c == '\\';
    }
  }

  int length() const { return length_; }  // in characters; 0 inside a string

 private:
  bool in_string_ = false;
  bool is_escaped_ = false;  // the last byte was an escaping backslash
  int length_ = 0;
};

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_TEXT_GRAMMAR_JSON_WHITE_SPACE_H_
