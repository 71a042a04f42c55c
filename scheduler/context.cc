#include "scheduler/context.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace hydrant {
namespace {

// What follows a context is read token by token, at several times the cost: one that is found, not
// named, must save so many tokens for each.
constexpr int64_t kTokensSavedPerTokenRead = 8;

bool IsWorthIt(const Context& context, const Request& request) {
  const int64_t read = static_cast<int64_t>(request.prompt.size()) - context.num_seen;
  return read * kTokensSavedPerTokenRead <= context.num_seen;
}

// And has something behind it.
bool Continues(const std::vector<TokenId>& prompt, const Context& context) {
  return prompt.size() > context.tokens.size() &&
         std::equal(context.tokens.begin(), context.tokens.end(), prompt.begin());
}

std::optional<Failed> Invalid(const std::string& message) {
  return Failed{.status = absl::InvalidArgumentError(message), .reason = "INVALID"};
}

}  // namespace

void ContextDirectory::Add(std::shared_ptr<const Context> context) {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::string handle = context->handle;
  contexts_.insert_or_assign(std::move(handle), std::move(context));
}

void ContextDirectory::Remove(const std::string& handle) {
  const std::lock_guard<std::mutex> lock(mutex_);
  contexts_.erase(handle);
}

std::shared_ptr<const Context> ContextDirectory::Find(const std::string& handle) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto it = contexts_.find(handle);
  return it == contexts_.end() ? nullptr : it->second;
}

std::shared_ptr<const Context> ContextDirectory::FindLongest(const Request& request) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::shared_ptr<const Context> longest;
  for (const auto& [handle, context] : contexts_) {
    if (context->salt != request.cache_salt || context->spec != request.cache) continue;
    if (longest != nullptr && context->tokens.size() <= longest->tokens.size()) continue;
    if (Continues(request.prompt, *context) && IsWorthIt(*context, request)) longest = context;
  }
  return longest;
}

std::optional<Failed> ContextDirectory::Resolve(Request* request) const {
  if (request->context.empty()) {
    if (request->find_context) request->from = FindLongest(*request);
    return std::nullopt;
  }
  std::shared_ptr<const Context> context = Find(request->context);
  // Whose it is another may not learn.
  if (context == nullptr || context->salt != request->cache_salt) {
    return Failed{.status = absl::NotFoundError(
                      absl::StrCat("context: ", request->context,
                                   " is unknown here; it may have left for newer ones: send the "
                                   "whole conversation")),
                  .reason = "UNKNOWN_CONTEXT"};
  }
  if (request->cache != CacheSpec() && request->cache != context->spec)
    return Invalid(absl::StrCat("cache: the context's policy is ", context->spec.policy,
                                ", and stays what it is; leave the fields unset"));
  if (request->question_tokens > 0)
    return Invalid("cache.question_tokens: a context has been compressed already");
  if (!request->whole_conversation) {
    request->prompt.insert(request->prompt.begin(), context->tokens.begin(), context->tokens.end());
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
