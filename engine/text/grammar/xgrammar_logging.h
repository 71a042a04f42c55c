// Compiled into XGrammar in place of its support/logging.h (cmake/Xgrammar.cmake), which prints
// warnings and only throws. Here
//   a warning is kept, because what it says was ignored must be refused;
//   an internal check is made in every build, and throws;
//   each of these checks is a step of a budget. They stand wherever the library visits a rule, adds
//   an edge or moves a parser, so the budget bounds its time and memory, and means the same on
//   every machine. The library has no way to be cancelled.
// The state is the calling thread's.
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

// Thrown where the steps have been used up. It is no std::exception: nothing in the library may
// take it for an error of its own and go on.
struct GrammarTooCostly {};

// Two variables: the one that is counted down must be constant at the start, or every step would
// call a function to ask whether it has been made.
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

// Throws at the end of the statement that it is made in.
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
