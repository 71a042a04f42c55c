// Serializes a context: its metadata, and every entry of its cache. The bytes identify their model,
// tokenizer and number format, and are refused by other models; they do not depend on the page
// size. Pure; safe from any thread.
//
//   "HYDRCTX2", then two parts, each as its length (uint64), its SHA-256 and its bytes:
//   head   all of Context and of OffloadedHeads
//   body   for each head of each layer, in KvCacheManager's order, its live entries: keys, values,
//          positions, scores, log weights, as in kernels/kv_pages.h; zeros where its policy keeps
//          no such state
//
// Numbers are little-endian.
#ifndef HYDRANT_SCHEDULER_CONTEXT_FILE_H_
#define HYDRANT_SCHEDULER_CONTEXT_FILE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/cache/engine_limits.h"
#include "engine/cache/kv_cache_manager.h"
#include "engine/cache/offload_memory.h"
#include "engine/cache/sha256.h"
#include "scheduler/context.h"

namespace hydrant {

// The model and engine properties that a context depends on.
struct ContextHome {
  Sha256Digest model = {};  // of its weights, shape and vocabulary
  KvLayout layout;          // of the pages, except their number
  EngineLimits limits;
  TokenId vocab_size = 0;
};

// REQUIRES: the pages of `offloaded` are written, and stay, until this returns.
std::string EncodeContext(const Context& context, const OffloadedCache& offloaded,
                          const OffloadMemory& memory, const ContextHome& home);

// A decoded and validated file. Its parts are consistent, so decoding from the cache is safe even
// if the file was crafted.
struct ContextFile {
  std::shared_ptr<Context> context;
  std::vector<HeadSpan> spans;   // [layers * KV heads]
  std::vector<int32_t> pages;    // [layers * KV heads]: needed for its entries
  std::vector<int32_t> lengths;  // [layers * KV heads]
  std::vector<int32_t> victims;  // [layers * KV heads]
  std::string_view body;
};

// Borrows `bytes`. DataLoss: not a context, truncated, or changed; FailedPrecondition: from another
// model, number format or version of this program. The message names the reason.
absl::StatusOr<ContextFile> DecodeContext(std::string_view bytes, const ContextHome& home);

// An upper bound of the encoded size of any context that fits into the memory of `home`.
size_t MaxContextBytes(const ContextHome& home);

// Writes the entries to the reserved pages.
void WriteContext(const ContextFile& file, const OffloadedCache& offloaded,
                  const OffloadMemory& memory);

}  // namespace hydrant

#endif  // HYDRANT_SCHEDULER_CONTEXT_FILE_H_
