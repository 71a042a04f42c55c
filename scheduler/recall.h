// Recall: passages of a context that share words with a request's prompt are read again before the
// prompt, because the context's cache may have evicted their entries.
#ifndef HYDRANT_SCHEDULER_RECALL_H_
#define HYDRANT_SCHEDULER_RECALL_H_

#include <cstdint>

#include "absl/status/status.h"
#include "engine/text/tokenizer/tokenizer.h"
#include "scheduler/request.h"

namespace hydrant {

// Inserts passages of at most Request::recall_tokens tokens together before Request::asked, by
// default the last `num_asked` tokens of the prompt, and counts them in Request::recalled_tokens.
// They share words with the tokens asked. Fewer if the prompt, its answer of max_tokens and they
// exceed max_model_len; none if the cache has evicted nothing. Called after
// ContextDirectory::Resolve(); does nothing if recall_tokens is 0. Thread safe.
// InvalidArgument: recall_tokens without a context, or with a whole conversation, which has to
// begin with the context's tokens in the next turn too.
absl::Status Recall(const Tokenizer& tokenizer, int64_t num_asked, int64_t max_model_len,
                    Request* request);

}  // namespace hydrant

#endif  // HYDRANT_SCHEDULER_RECALL_H_
