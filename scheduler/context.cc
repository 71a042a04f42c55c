#include "scheduler/context.h"

#include <algorithm>
#include <span>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace hydrant {
namespace {

// A context that is found automatically and must be extended token by token, which costs several
// times as much as prefill, must save this many tokens for each token to read.
constexpr int64_t kTokensSavedPerTokenRead = 8;

bool IsWorthIt(const Context& context, const Request& request) {
  if (context.plan.AppendsRuns()) return true;
  const int64_t read = static_cast<int64_t>(request.prompt.size()) - context.num_seen;
  return read * kTokensSavedPerTokenRead <= context.num_seen;
}

// The prompt begins with the context's tokens and has more.
bool Continues(const std::vector<TokenId>& prompt, const Context& context) {
  return prompt.size() > context.tokens.size() &&
         std::equal(context.tokens.begin(), context.tokens.end(), prompt.begin());
}

std::optional<Failed> Invalid(const std::string& message) {
  return Failed{.status = absl::InvalidArgumentError(message), .reason = "INVALID"};
}

}  // namespace

Failed UnknownContext(const std::string& handle) {
  return {.status = absl::NotFoundError(
              absl::StrCat("context: ", handle,
                           " is unknown here; it may have expired, or left for newer ones: send "
                           "the whole conversation")),
          .reason = "UNKNOWN_CONTEXT"};
}

void ContextDirectory::Add(std::shared_ptr<const Context> context) {
  const MutexLock lock(mutex_);
  ContextId id = context->id;
  contexts_.insert_or_assign(std::move(id), std::move(context));
}

void ContextDirectory::Remove(const Context& context) {
  const MutexLock lock(mutex_);
  const auto it = contexts_.find(context.id);
  if (it != contexts_.end() && it->second.get() == &context) contexts_.erase(it);
}

std::shared_ptr<const Context> ContextDirectory::Find(const ContextId& id, int64_t unix_now) const {
  const MutexLock lock(mutex_);
  const auto it = contexts_.find(id);
  if (it == contexts_.end() || it->second->HasExpired(unix_now)) return nullptr;
  return it->second;
}

std::vector<std::shared_ptr<const Context>> ContextDirectory::List(const std::string& salt,
                                                                   int64_t unix_now) const {
  const MutexLock lock(mutex_);
  std::vector<std::shared_ptr<const Context>> found;
  for (auto it = contexts_.lower_bound({.salt = salt, .handle = ""});
       it != contexts_.end() && it->first.salt == salt; ++it) {
    if (!it->second->HasExpired(unix_now)) found.push_back(it->second);
  }
  return found;
}

int64_t ContextDirectory::CountOfSalts(const std::string& prefix) const {
  const MutexLock lock(mutex_);
  int64_t count = 0;
  for (auto it = contexts_.lower_bound({.salt = prefix, .handle = ""});
       it != contexts_.end() && it->first.salt.starts_with(prefix); ++it)
    ++count;
  return count;
}

std::vector<ContextId> ContextDirectory::Expired(int64_t unix_now) const {
  const MutexLock lock(mutex_);
  std::vector<ContextId> expired;
  for (const auto& [id, context] : contexts_) {
    if (context->HasExpired(unix_now)) expired.push_back(id);
  }
  return expired;
}

std::shared_ptr<const Context> ContextDirectory::FindLongest(const Request& request,
                                                             int64_t unix_now) const {
  std::shared_ptr<const Context> longest;
  for (const std::shared_ptr<const Context>& context : List(request.cache_salt, unix_now)) {
    if (context->spec != request.cache) continue;
    if (longest != nullptr && context->tokens.size() <= longest->tokens.size()) continue;
    if (Continues(request.prompt, *context) && IsWorthIt(*context, request)) longest = context;
  }
  return longest;
}

std::span<const TokenId> MissingEnd(const Context& context, std::span<const TokenId> answer_end) {
  const std::vector<TokenId>& tokens = context.tokens;
  for (size_t n = std::min(answer_end.size(), tokens.size()); n > 0; --n) {
    const auto begin = answer_end.begin();
    if (std::equal(begin, begin + static_cast<int64_t>(n), tokens.end() - static_cast<int64_t>(n)))
      return answer_end.subspan(n);
  }
  int64_t read = context.first_plan.prompt.tokens;
  for (const TokenRange& range : context.append_ranges) read = std::max<int64_t>(read, range.end);
  return std::cmp_greater(tokens.size(), read) ? answer_end : std::span<const TokenId>();
}

std::optional<Failed> ContextDirectory::Resolve(Request* request, int64_t unix_now) const {
  if (request->context.empty()) {
    if (request->find_context) request->from = FindLongest(*request, unix_now);
    return std::nullopt;
  }
  std::shared_ptr<const Context> context =
      Find({.salt = request->cache_salt, .handle = request->context}, unix_now);
  if (context == nullptr) context = std::exchange(request->seen_context, nullptr);
  if (context == nullptr) return UnknownContext(request->context);
  if (request->cache != CacheSpec() && request->cache != context->spec)
    return Invalid(absl::StrCat("cache: the context's policy is ", context->spec.policy,
                                ", and stays what it is; leave the fields unset"));
  if (request->question_tokens > 0)
    return Invalid("cache.question_tokens: a context has been compressed already");
  if (!request->whole_conversation) {
    std::vector<TokenId> all = context->tokens;
    const std::span<const TokenId> end = MissingEnd(*context, request->answer_end);
    all.insert(all.end(), end.begin(), end.end());
    all.insert(all.end(), request->prompt.begin(), request->prompt.end());
    request->prompt = std::move(all);
  } else if (!Continues(request->prompt, *context)) {
    return Invalid(absl::StrCat("prompt: does not continue context ", request->context,
                                ": it must begin with its ", context->tokens.size(),
                                " tokens, and have more"));
  }
  request->cache = context->spec;
  request->from = std::move(context);
  return std::nullopt;
}

}  // namespace hydrant
