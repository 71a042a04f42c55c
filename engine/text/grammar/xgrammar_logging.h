// Compiled into XGrammar in place of its support/logging.h (cmake/Xgrammar.cmake), which prints
// warnings and only throws. Differences:
// - a warning is kept, because the ignored part of a grammar must be refused;
// - an internal check is active in every build, and throws;
// - each of these checks counts as a step of a budget. The library checks whenever it visits a
//   rule, adds an edge or moves a parser, so the budget bounds its time and memory, equally on
//   every machine. The library cannot be cancelled otherwise. The state is thread local.
#ifndef XGRAMMAR_SUPPORT_LOGGING_H_
#define XGRAMMAR_SUPPORT_LOGGING_H_

#include <cstdint>
#include <ctime>
#include <iomanip>
#include <iostream>
#include <limits>
#include <sstream>
#include <stdexcept>
#include <string>

namespace hydrant {

// Thrown when the steps are used up. Not a std::exception, so that the library cannot catch it as
// an error of its own and continue.
struct GrammarTooCostly {};

// Two variables: the counter must be constant-initialized, or every step would call a function to
// check its initialization.
inline thread_local int64_t grammar_steps_left = std::numeric_limits<int64_t>::max();
inline thread_local std::string grammar_warning;  // the first one

inline void SpendGrammarSteps(int64_t steps) {
  grammar_steps_left -= steps;
  if (grammar_steps_left < 0) throw GrammarTooCostly();
}

}  // namespace hydrant

namespace xgrammar {

class LogFatalError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Throws at the end of the statement that creates it.
class LogFatal {
 public:
  explicit LogFatal(const char* condition = "") : condition_(condition) {}
  [[noreturn]] ~LogFatal() noexcept(false) {
    const std::string message = stream_.str();
    throw LogFatalError(message.empty() ? std::string("not so: ") + condition_ : message);
  }
  std::ostringstream& stream() { return stream_; }

 private:
  const char* condition_;
  std::ostringstream stream_;
};

class LogMessage {
 public:
  explicit LogMessage(bool is_warning) : is_warning_(is_warning) {}
  ~LogMessage() {
    std::string& first = hydrant::grammar_warning;
    if (is_warning_ && first.empty()) first = stream_.str();
  }
  std::ostringstream& stream() { return stream_; }

 private:
  bool is_warning_;
  std::ostringstream stream_;
};

}  // namespace xgrammar

#define XGRAMMAR_LOG_INFO ::xgrammar::LogMessage(false).stream()
#define XGRAMMAR_LOG_DEBUG ::xgrammar::LogMessage(false).stream()
#define XGRAMMAR_LOG_WARNING ::xgrammar::LogMessage(true).stream()
#define XGRAMMAR_LOG_FATAL ::xgrammar::LogFatal().stream()
#define XGRAMMAR_LOG(level) XGRAMMAR_LOG_##level

#define XGRAMMAR_CHECK(x) \
  if (!(x)) ::xgrammar::LogFatal(#x).stream()
#define XGRAMMAR_ICHECK(x) \
  if (!(x)) ::xgrammar::LogFatal().stream() << "internal check (" #x ") failed: "
#define XGRAMMAR_DCHECK(x)                   \
  if (::hydrant::SpendGrammarSteps(1), !(x)) \
  ::xgrammar::LogFatal().stream() << "internal check (" #x ") failed: "

#endif  // XGRAMMAR_SUPPORT_LOGGING_H_
