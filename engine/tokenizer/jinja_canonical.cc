#include "engine/tokenizer/jinja_canonical.h"

#include <cctype>
#include <vector>

namespace hydrant {
namespace {

struct Token {
  bool is_string;
  std::string text;
};

bool IsIdentifier(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; }
bool IsSpace(char c) { return std::isspace(static_cast<unsigned char>(c)) != 0; }

// The end of the string literal that starts at `at` (behind the closing quote); npos if it has
// none.
size_t EndOfString(std::string_view text, size_t at) {
  const char quote = text[at++];
  while (at < text.size() && text[at] != quote) at += text[at] == '\\' ? 2 : 1;
  return at < text.size() ? at + 1 : std::string_view::npos;
}

std::string Unescape(std::string_view literal) {
  std::string text;
  for (size_t i = 1; i + 1 < literal.size(); ++i) {
    char c = literal[i];
    if (c == '\\' && i + 2 < literal.size()) {
      c = literal[++i];
      if (c == 'n')
        c = '\n';
      else if (c == 't')
        c = '\t';
      else if (c != '\\' && c != '\'' && c != '"')
        text += '\\';
    }
    text += c;
  }
  return text;
}

std::vector<Token> Tokenise(std::string_view body) {
  std::vector<Token> tokens;
  for (size_t at = 0; at < body.size();) {
    size_t end = at + 1;
    if (IsSpace(body[at])) {
      ++at;
      continue;
    }
    const bool is_string = body[at] == '\'' || body[at] == '"';
    if (is_string) {
      end = EndOfString(body, at);
    } else if (IsIdentifier(body[at])) {
      while (end < body.size() && IsIdentifier(body[end])) ++end;
    }
    const std::string_view part = body.substr(at, end - at);
    tokens.push_back({is_string, is_string ? Unescape(part) : std::string(part)});
    at = end;
  }
  return tokens;
}

bool Is(const std::vector<Token>& tokens, size_t at, const char* symbol) {
  return at < tokens.size() && !tokens[at].is_string && tokens[at].text == symbol;
}

// "a" + "b" is "ab", unless an operator that binds tighter stands behind.
void FoldStrings(std::vector<Token>* tokens) {
  for (size_t i = 0; i + 2 < tokens->size();) {
    const bool tighter =
        Is(*tokens, i + 3, "|") || Is(*tokens, i + 3, ".") || Is(*tokens, i + 3, "[");
    if ((*tokens)[i].is_string && Is(*tokens, i + 1, "+") && (*tokens)[i + 2].is_string &&
        !tighter) {
      (*tokens)[i].text += (*tokens)[i + 2].text;
      tokens->erase(tokens->begin() + static_cast<ptrdiff_t>(i) + 1,
                    tokens->begin() + static_cast<ptrdiff_t>(i) + 3);
    } else {
      ++i;
    }
  }
}

std::string Spell(const std::vector<Token>& tokens) {
  std::string out;
  bool after_word = false;
  for (size_t i = 0; i < tokens.size(); ++i) {
    const bool subscript = Is(tokens, i, "[") && i > 0 && i + 2 < tokens.size() &&
                           tokens[i + 1].is_string && Is(tokens, i + 2, "]");
    if (subscript) {
      out += "." + tokens[i + 1].text;
      i += 2;
      after_word = true;
      continue;
    }
    const bool word = !tokens[i].is_string && IsIdentifier(tokens[i].text[0]);
    if (word && after_word) out += ' ';
    out += tokens[i].is_string ? "\"" + tokens[i].text + "\"" : tokens[i].text;
    after_word = word;
  }
  return out;
}

// The end of the tag body that starts at `at`: where `close` stands outside every string.
size_t EndOfBody(std::string_view source, size_t at, std::string_view close) {
  while (at < source.size()) {
    if (source.substr(at, 2) == close) return at;
    if (close != "#}" && (source[at] == '\'' || source[at] == '"')) {
      at = EndOfString(source, at);
      if (at == std::string_view::npos) return at;
    } else {
      ++at;
    }
  }
  return std::string_view::npos;
}

// What white space control leaves of the text before a tag.
std::string_view TrimBefore(std::string_view text, bool dash, bool is_block, bool at_line_start) {
  std::string_view trimmed = text;
  while (!trimmed.empty() &&
         (dash ? IsSpace(trimmed.back()) : (trimmed.back() == ' ' || trimmed.back() == '\t'))) {
    trimmed.remove_suffix(1);
  }
  if (dash) return trimmed;
  const bool opens_line = trimmed.empty() ? at_line_start : trimmed.back() == '\n';
  return is_block && opens_line ? trimmed : text;
}

}  // namespace

absl::StatusOr<std::string> CanonicalJinja(std::string_view source) {
  if (!source.empty() && source.back() == '\n') source.remove_suffix(1);
  std::string out;
  bool strip_next = false, drop_newline = false;
  for (;;) {
    size_t open = source.find('{');
    while (open != std::string_view::npos &&
           (open + 1 >= source.size() ||
            std::string_view("{%#").find(source[open + 1]) == std::string_view::npos)) {
      open = source.find('{', open + 1);
    }
    std::string_view text = source.substr(0, open);
    bool at_line_start = out.empty();
    if (drop_newline && !text.empty() && text[0] == '\n') {
      text.remove_prefix(1);
      at_line_start = true;
    }
    while (strip_next && !text.empty() && IsSpace(text[0])) text.remove_prefix(1);
    if (open == std::string_view::npos) return out.append(text);

    const char kind = source[open + 1];
    const std::string_view close = kind == '{' ? "}}" : kind == '%' ? "%}" : "#}";
    size_t begin = open + 2;
    const bool dash = begin < source.size() && source[begin] == '-';
    if (dash) ++begin;
    out.append(TrimBefore(text, dash, kind != '{', at_line_start));
    const size_t end = EndOfBody(source, begin, close);
    if (end == std::string_view::npos)
      return absl::InvalidArgumentError("a tag of the template is not closed");
    std::string_view body = source.substr(begin, end - begin);
    strip_next = !body.empty() && body.back() == '-';
    if (strip_next) body.remove_suffix(1);
    drop_newline = kind != '{';
    source.remove_prefix(end + 2);
    if (kind == '#') continue;
    std::vector<Token> tokens = Tokenise(body);
    FoldStrings(&tokens);
    if (kind == '{' && tokens.size() == 1 && tokens[0].is_string) {
      out += tokens[0].text;
    } else {
      out += kTagOpen;
      if (kind == '{') out += '=';
      out += Spell(tokens) + kTagClose;
    }
  }
}

}  // namespace hydrant
