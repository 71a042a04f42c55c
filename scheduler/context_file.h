// A context as bytes that outlive the process: what it was made of, and every entry of its cache.
// They say of which model, tokenizer and number format they are, and are refused by others; they do
// not depend on the size of pages. Pure; safe from any thread.
//
//   "HYDRCTX2", then two parts, each as its length (uint64), its SHA-256 and its bytes:
//   head   all of Context and of KeptHeads
//   body   for each head of each layer, in CacheSpace's order, its live entries: keys, values,
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
#include "engine/cache/cache_space.h"
#include "engine/cache/engine_limits.h"
#include "engine/cache/kept_memory.h"
#include "engine/cache/sha256.h"
#include "scheduler/context.h"

namespace hydrant {

// What a context belongs to.
struct ContextHome {
  Sha256Digest model = {};  // of its weights, shape and vocabulary
  KvLayout layout;          // of the pages; their numbers aside
  EngineLimits limits;
  TokenId vocab_size = 0;
};

// REQUIRES: the pages of `space` are written, and stay, until this returns.
std::string EncodeContext(const Context& context, const KeptSpace& space, const KeptMemory& memory,
                          const ContextHome& home);

// A file that was found whole and at home. What it says holds together: a cache that is made of it
// can be decoded from, whoever wrote it.
struct ContextFile {
  std::shared_ptr<Context> context;
  std::vector<HeadSpan> spans;   // [layers * KV heads]
  std::vector<int32_t> pages;    // the same: that its entries take here
  std::vector<int32_t> lengths;  // the same
  std::vector<int32_t> victims;  // the same
  std::string_view body;
};

// Borrows `bytes`. DataLoss: they are no context, cut short, or changed; FailedPrecondition: of
// another model, number format or a newer version of this program. The message says which.
absl::StatusOr<ContextFile> DecodeContext(std::string_view bytes, const ContextHome& home);

// An upper bound of the encoded bytes of any context that fits into this home's memory.
size_t MostContextBytes(const ContextHome& home);

// Into the pages that were reserved for it.
void WriteContext(const ContextFile& file, const KeptSpace& space, const KeptMemory& memory);

}  // namespace hydrant

#endif  // HYDRANT_SCHEDULER_CONTEXT_FILE_H_
