#include "client/line_reader.h"

#include <langinfo.h>
#include <poll.h>
#include <unistd.h>

#include <array>
#include <clocale>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <string_view>

#include "kernels/standard_streams.h"
#ifdef HYDRANT_EDITLINE
#include <editline/readline.h>
#endif

namespace hydrant {
namespace {

constexpr char kPrompt[] = "> ";

#ifdef HYDRANT_EDITLINE
// libedit decodes input by the locale; terminals send UTF-8.
void UseUtf8() {
  std::setlocale(LC_CTYPE, "");
  if (std::string(nl_langinfo(CODESET)) != "UTF-8") std::setlocale(LC_CTYPE, "C.UTF-8");
}

// During an answer the terminal itself edits lines and handles Ctrl-D. Such input has to be read
// before libedit changes the terminal's mode: libedit reads that Ctrl-D as the character 0.
bool IsTypedAhead() {
  pollfd input = {.fd = STDIN_FILENO, .events = POLLIN, .revents = 0};
  return poll(&input, 1, 0) > 0;
}

std::optional<std::string> ReadTypedAhead() {
  std::array<char, 4096> line;  // the maximum line length of a terminal
  const ssize_t count = read(STDIN_FILENO, line.data(), line.size());
  if (count <= 0) return std::nullopt;
  const std::string_view text(line.data(), static_cast<size_t>(count));
  return std::string(text.substr(0, text.find('\n')));
}

std::optional<std::string> ReadTyped() {
  if (IsTypedAhead()) return ReadTypedAhead();
  const std::unique_ptr<char, void (*)(void*)> line(readline(kPrompt), std::free);
  if (line == nullptr) return std::nullopt;
  if (*line != '\0') add_history(line.get());
  return line.get();
}
#endif

std::optional<std::string> ReadPlain() {
  std::string line;
  if (!std::getline(std::cin, line)) return std::nullopt;
  return line;
}

}  // namespace

LineReader::LineReader() : is_typed_(isatty(STDIN_FILENO) != 0 && isatty(STDERR_FILENO) != 0) {
#ifdef HYDRANT_EDITLINE
  if (!is_typed_) return;
  UseUtf8();
  rl_instream = stdin;
  rl_outstream = stderr;  // standard output is for answers
#endif
}

std::optional<std::string> LineReader::Next() {
  if (!is_typed_) return ReadPlain();
#ifdef HYDRANT_EDITLINE
  std::optional<std::string> line = ReadTyped();
#else
  PrintErr("{}", kPrompt);
  std::optional<std::string> line = ReadPlain();
#endif
  if (!line.has_value()) PrintErr("\n");  // ends the prompt's line after Ctrl-D
  return line;
}

}  // namespace hydrant
