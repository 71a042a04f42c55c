#include "engine/text/tokenizer/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <optional>

#include "absl/strings/str_cat.h"
#include "engine/model/text.h"
#include "engine/text/unicode/utf8.h"
#include "kernels/status_macros.h"

namespace hydrant {
namespace {

constexpr size_t kJitStackStart = 64 << 10, kJitStackMax = 64 << 20;  // bytes
constexpr uint32_t kMatchLimit = 100'000'000;
constexpr uint32_t kHeapLimitKib = 256 << 10;
constexpr size_t kMaxPatternBytes = 1 << 16;

template <auto Free>
struct Deleter {
  template <typename T>
  void operator()(T* pointer) const {
    Free(pointer);
  }
};
using Code = std::unique_ptr<pcre2_code, Deleter<pcre2_code_free>>;
using CompileContext = std::unique_ptr<pcre2_compile_context, Deleter<pcre2_compile_context_free>>;
using MatchContext = std::unique_ptr<pcre2_match_context, Deleter<pcre2_match_context_free>>;
using MatchData = std::unique_ptr<pcre2_match_data, Deleter<pcre2_match_data_free>>;
using JitStack = std::unique_ptr<pcre2_jit_stack, Deleter<pcre2_jit_stack_free>>;

std::string ErrorText(int error) {
  PCRE2_UCHAR text[256] = {};
  pcre2_get_error_message(error, text, sizeof(text));
  return reinterpret_cast<const char*>(text);
}

// One thread's scan of one text. The JIT starts on the machine stack; a text that needs more gets
// its own stack, and beyond that the interpreter runs, which uses the heap.
class Matcher {
 public:
  explicit Matcher(const pcre2_code* code)
      : code_(code),
        context_(pcre2_match_context_create(nullptr)),
        data_(pcre2_match_data_create(1, nullptr)) {
    pcre2_set_match_limit(context_.get(), kMatchLimit);
    pcre2_set_heap_limit(context_.get(), kHeapLimitKib);
  }

  // nullopt: no further match.
  absl::StatusOr<std::optional<Regex::Match>> Next(std::string_view text, size_t from) {
    int result = Try(text, from, 0);
    if (result == PCRE2_ERROR_JIT_STACKLIMIT && !stack_) {
      stack_.reset(pcre2_jit_stack_create(kJitStackStart, kJitStackMax, nullptr));
      if (stack_) {
        pcre2_jit_stack_assign(context_.get(), nullptr, stack_.get());
        result = Try(text, from, 0);
      }
    }
    if (result == PCRE2_ERROR_JIT_STACKLIMIT) result = Try(text, from, PCRE2_NO_JIT);
    if (result == PCRE2_ERROR_NOMATCH) return std::nullopt;
    if (result < 0) {
      return absl::ResourceExhaustedError(
          absl::StrCat("splitting the text gave up at byte ", from, ": ", ErrorText(result)));
    }
    const PCRE2_SIZE* offsets = pcre2_get_ovector_pointer(data_.get());
    return Regex::Match{offsets[0], offsets[1]};
  }

 private:
  int Try(std::string_view text, size_t from, uint32_t options) {
    return pcre2_match(code_, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), from,
                       options | PCRE2_NO_UTF_CHECK, data_.get(), context_.get());
  }

  const pcre2_code* code_;
  MatchContext context_;
  MatchData data_;
  JitStack stack_;
};

}  // namespace

struct Regex::Impl {
  Code code;
};

Regex::Regex(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Regex::~Regex() = default;

absl::StatusOr<std::unique_ptr<Regex>> Regex::Compile(std::string_view pattern) {
  if (pattern.size() > kMaxPatternBytes) {
    return absl::InvalidArgumentError(absl::StrCat("regular expression of ", pattern.size(),
                                                   " bytes; the limit is ", kMaxPatternBytes));
  }
  HYDRANT_RETURN_IF_ERROR(ValidateUtf8(pattern));
  HYDRANT_ASSIGN_OR_RETURN(std::string translated, TranslateRegex(pattern));
  CompileContext context(pcre2_compile_context_create(nullptr));
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  int error = 0;
  PCRE2_SIZE offset = 0;
  Code code(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated.data()), translated.size(),
                          PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C, &error,
                          &offset, context.get()));
  if (!code) {
    return absl::InvalidArgumentError(
        absl::StrCat("regular expression ", Quoted(pattern), ": ", ErrorText(error)));
  }
  // Without JIT support the interpreter gives the same matches.
  pcre2_jit_compile(code.get(), PCRE2_JIT_COMPLETE);
  auto impl = std::make_unique<Impl>();
  impl->code = std::move(code);
  return std::unique_ptr<Regex>(new Regex(std::move(impl)));
}

absl::Status Regex::FindAll(std::string_view text, std::vector<Match>* matches) const {
  Matcher matcher(impl_->code.get());
  size_t from = 0, last_end = std::string_view::npos;
  while (from <= text.size()) {
    HYDRANT_ASSIGN_OR_RETURN(auto match, matcher.Next(text, from));
    if (!match.has_value()) break;
    const auto [begin, end] = *match;
    const bool empty = end <= begin;
    if (!(empty && begin == last_end)) matches->push_back({begin, empty ? begin : end});
    last_end = end;
    if (!empty) {
      from = end;
    } else if (begin < text.size()) {
      from = begin + ReadUtf8(text.substr(begin)).length;
    } else {
      break;
    }
  }
  return absl::OkStatus();
}

}  // namespace hydrant
