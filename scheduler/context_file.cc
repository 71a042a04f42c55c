#include "scheduler/context_file.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>
#include <span>
#include <type_traits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/cache/prompt_scorer.h"
#include "kernels/kv_pages.h"
#include "kernels/status_macros.h"

namespace hydrant {
namespace {

static_assert(std::endian::native == std::endian::little);

// The prefix is common to all versions; the last character is the version.
constexpr std::string_view kMagic = "HYDRCTX2";
constexpr std::string_view kMagicOfAll = kMagic.substr(0, 7);

// A bit beside PromptShape::fits_two_passes, the lowest: the plan's scores are predicted, and the
// predictor's id follows.
constexpr uint8_t kPredictsScores = 2;

// More than any request can have.
constexpr uint64_t kMaxParams = 64;

class Writer {
 public:
  template <typename T>
  void Add(T value) {
    static_assert(std::is_arithmetic_v<T>);
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof(value));
  }
  void Add(std::string_view text) {
    Add<uint64_t>(text.size());
    bytes_.append(text);
  }
  template <typename T>
  void Add(const std::optional<T>& value) {
    Add<uint8_t>(value.has_value());
    Add(value.value_or(T()));
  }
  template <typename T>
  void AddAll(std::span<const T> values) {
    Add<uint64_t>(values.size());
    bytes_.append(reinterpret_cast<const char*>(values.data()), values.size_bytes());
  }
  const std::string& bytes() const { return bytes_; }

 private:
  std::string bytes_;
};

// Reads zeros once the bytes have ended too early; ok() says so in the end.
class Reader {
 public:
  explicit Reader(std::string_view bytes) : bytes_(bytes) {}

  template <typename T>
  T Get() {
    T value = T();
    const std::string_view raw = Take(sizeof(T));
    if (ok_) std::memcpy(&value, raw.data(), sizeof(T));
    return value;
  }
  std::string GetText() { return std::string(Take(Get<uint64_t>())); }
  template <typename T>
  std::optional<T> GetOptional() {
    const bool is_set = Get<uint8_t>() != 0;
    const T value = Get<T>();
    return is_set ? std::optional<T>(value) : std::nullopt;
  }
  template <typename T>
  std::vector<T> GetAll() {
    const auto count = Get<uint64_t>();
    if (count > bytes_.size() / sizeof(T)) ok_ = false;
    std::vector<T> values(ok_ ? count : 0);
    const std::string_view raw = Take(values.size() * sizeof(T));
    if (!values.empty()) std::memcpy(values.data(), raw.data(), raw.size());
    return values;
  }
  std::string_view Take(uint64_t size) {
    if (size > bytes_.size()) ok_ = false;
    if (!ok_) return {};
    const std::string_view taken = bytes_.substr(0, size);
    bytes_.remove_prefix(size);
    return taken;
  }
  bool ok() const { return ok_; }
  bool AtEnd() const { return ok_ && bytes_.empty(); }

 private:
  std::string_view bytes_;
  bool ok_ = true;
};

std::string_view AsText(const Sha256Digest& digest) {
  return {reinterpret_cast<const char*>(digest.data()), digest.size()};
}

Sha256Digest DigestOf(std::string_view bytes) {
  Sha256 hash;
  hash.Add(bytes);
  return hash.Finish();
}

size_t EntryBytes(const KvLayout& layout) {
  return 2 * BytesOf(layout.dtype, layout.head_dim) + sizeof(int32_t) + 3 * sizeof(float);
}

// ---- The head.

// Of an entry's dtype: keys in blocks are scaled (KeyScaling), in older files they were not.
constexpr uint8_t kScaledKeys = 0x80;

void AddHome(const ContextHome& home, Writer* writer) {
  writer->Add(AsText(home.model));
  const auto dtype = static_cast<uint8_t>(home.layout.dtype);
  writer->Add<uint8_t>(BlockElements(home.layout.dtype) > 1 ? dtype | kScaledKeys : dtype);
  writer->Add<int32_t>(home.layout.head_dim);
  writer->Add<int32_t>(home.limits.num_layers);
  writer->Add<int32_t>(home.limits.WindowLayers());
  writer->Add<int32_t>(home.limits.Window());
  writer->Add<int32_t>(home.limits.num_kv_heads);
}

void AddSpec(const CacheSpec& spec, Writer* writer) {
  writer->Add(std::string_view(spec.policy));
  writer->Add(spec.max_cache_tokens);
  writer->Add(spec.cache_ratio);
  writer->Add(spec.min_cache_tokens);
  writer->Add(spec.sink_tokens);
  writer->Add(spec.protected_window_size);
  writer->Add(spec.min_retained_mass);
  writer->Add<uint64_t>(spec.params.size());
  for (const auto& [name, value] : spec.params) {
    writer->Add(std::string_view(name));
    writer->Add(std::string_view(value));
  }
}

CacheSpec GetSpec(Reader* reader) {
  CacheSpec spec;
  spec.policy = reader->GetText();
  spec.max_cache_tokens = reader->GetOptional<int64_t>();
  spec.cache_ratio = reader->GetOptional<double>();
  spec.min_cache_tokens = reader->GetOptional<int64_t>();
  spec.sink_tokens = reader->GetOptional<int64_t>();
  spec.protected_window_size = reader->GetOptional<int64_t>();
  spec.min_retained_mass = reader->GetOptional<double>();
  const auto params = std::min(reader->Get<uint64_t>(), kMaxParams);
  for (uint64_t i = 0; i < params && reader->ok(); ++i) {
    std::string name = reader->GetText();
    spec.params[std::move(name)] = reader->GetText();
  }
  return spec;
}

void AddContext(const Context& context, const ContextHome& home, Writer* writer) {
  writer->Add(std::string_view(context.id.salt));
  writer->Add(std::string_view(context.id.handle));
  writer->AddAll(std::span(context.tokens));
  writer->Add<int64_t>(context.num_seen);
  writer->AddAll(std::span(context.append_ranges));
  writer->Add<int64_t>(context.created_at);
  writer->Add<int64_t>(context.expires_at);
  writer->Add<uint8_t>(context.pinned);
  const RetainedMass mass = context.retained_mass.value_or(RetainedMass());
  writer->Add<uint8_t>(context.retained_mass.has_value());
  for (const float part : {mass.mean, mass.minimum, mass.p10}) writer->Add(part);
  AddSpec(context.spec, writer);
  const PromptShape& prompt = context.first_plan.prompt;
  writer->Add<int64_t>(prompt.tokens);
  writer->Add<int64_t>(prompt.question_tokens);
  writer->Add<uint8_t>(prompt.question_later);
  // Another predictor's scores do not compare with those of the entries.
  const bool predicts = context.first_plan.scorer->Predicts();
  writer->Add<uint8_t>((prompt.fits_two_passes ? 1 : 0) | (predicts ? kPredictsScores : 0));
  if (predicts) writer->Add<uint32_t>(home.limits.score_predictor);
  writer->Add(std::string_view(SaveDecision(context.first_plan)));
}

// Ranges behind the prompt, in order, of tokens that have been seen.
bool AreContiguous(const std::vector<TokenRange>& ranges, int64_t prompt_tokens, int64_t seen) {
  int64_t from = prompt_tokens;
  for (const TokenRange& range : ranges) {
    if (range.begin < from || range.end <= range.begin || range.end > seen) return false;
    from = range.end;
  }
  return true;
}

absl::StatusOr<std::shared_ptr<Context>> GetContext(Reader* reader, const ContextHome& home) {
  auto context = std::make_shared<Context>();
  context->id.salt = reader->GetText();
  context->id.handle = reader->GetText();
  context->tokens = reader->GetAll<TokenId>();
  context->num_seen = reader->Get<int64_t>();
  context->append_ranges = reader->GetAll<TokenRange>();
  context->created_at = reader->Get<int64_t>();
  context->expires_at = reader->Get<int64_t>();
  context->pinned = reader->Get<uint8_t>() != 0;
  const bool has_mass = reader->Get<uint8_t>() != 0;
  RetainedMass mass;
  for (float* part : {&mass.mean, &mass.minimum, &mass.p10}) *part = reader->Get<float>();
  if (has_mass) context->retained_mass = mass;
  context->spec = GetSpec(reader);
  PromptShape prompt = home.limits.ShapeOf(reader->Get<int64_t>());
  prompt.question_tokens = reader->Get<int64_t>();
  prompt.question_later = reader->Get<uint8_t>() != 0;
  prompt.goes_on = true;
  const auto flags = reader->Get<uint8_t>();
  prompt.fits_two_passes = (flags & 1) != 0;
  prompt.predicts_scores = (flags & kPredictsScores) != 0;
  if (prompt.predicts_scores && reader->Get<uint32_t>() != home.limits.score_predictor &&
      reader->ok())
    return absl::FailedPreconditionError("it was scored by another score predictor");
  const std::string decision = reader->GetText();
  const auto known = static_cast<int64_t>(context->tokens.size());
  const bool holds_together =
      reader->ok() && prompt.tokens >= 1 && prompt.question_tokens >= 0 &&
      prompt.tokens + prompt.question_tokens <= known && context->num_seen >= prompt.tokens &&
      context->num_seen <= known &&
      AreContiguous(context->append_ranges, prompt.tokens, context->num_seen) &&
      known <= std::numeric_limits<int32_t>::max() &&
      std::all_of(context->tokens.begin(), context->tokens.end(),
                  [&](TokenId id) { return id < home.vocab_size; });
  if (!holds_together) return absl::DataLossError("its tokens do not hold together");
  absl::StatusOr<CachePlan> plan = RestorePlan(context->spec, prompt, decision);
  if (!plan.ok()) return absl::DataLossError(std::string(plan.status().message()));
  context->first_plan = *std::move(plan);
  context->plan = PlanAfterAppends(context->first_plan, context->spec, context->append_ranges);
  return context;
}

// ---- The body.

// Where a head's entries lie in pages of the host's memory; calls each(entry, slot, count) for runs
// of entries that are neighbours there.
template <typename Each>
void ForEachRun(std::span<const int32_t> pages, int32_t length, int block_size, const Each& each) {
  for (int32_t entry = 0; entry < length; entry += block_size) {
    const auto slot = static_cast<int64_t>(pages[entry / block_size]) * block_size;
    each(entry, slot, std::min(block_size, length - entry));
  }
}

struct Array {
  uint8_t* memory = nullptr;
  size_t bytes = 0;  // of an entry
};

std::array<Array, 5> ArraysOf(const KvPages& pages) {
  const size_t vector = BytesOf(pages.layout.dtype, pages.layout.head_dim);
  return {{{static_cast<uint8_t*>(pages.keys), vector},
           {static_cast<uint8_t*>(pages.values), vector},
           {reinterpret_cast<uint8_t*>(pages.positions), sizeof(int32_t)},
           {reinterpret_cast<uint8_t*>(pages.scores), sizeof(float)},
           {reinterpret_cast<uint8_t*>(pages.log_weights), 2 * sizeof(float)}}};
}

// Where a head has no state that lasts, the body has zeros: what lies in its pages may be anything.
KvPages LastingOf(const Context& context, bool in_budget_group, KvPages pages) {
  const CachePlan& plan = context.plan;
  const DecodeRule& rule = plan.rule;
  const bool sampled = rule.weighted && (plan.retention->CompactsPrompt(plan) ||
                                         context.num_seen > plan.retention->InitialSpanEnd(plan));
  const bool scored = rule.ScoresEntries() || sampled || plan.ScoresTurns();
  if (!in_budget_group || !scored) pages.scores = nullptr;
  if (!in_budget_group || (!rule.weighted && rule.revision != Revision::kBelowMean))
    pages.log_weights = nullptr;
  return pages;
}

// Calls copy(in the body, in memory, bytes) for all that a cache holds, in the order of the body;
// of each head for the arrays that pages_of(head) has.
template <typename PagesOfHead, typename Copy>
void ForEachPiece(std::span<const int32_t> lengths, const OffloadedCache& offloaded,
                  const PagesOfHead& pages_of, const Copy& copy) {
  size_t at = 0;
  std::span<const int32_t> host_pages = offloaded.host_pages;
  for (size_t head = 0; head < lengths.size(); ++head) {
    const KvPages pages = pages_of(head);
    for (const Array& array : ArraysOf(pages)) {
      if (array.memory != nullptr) {
        ForEachRun(host_pages, lengths[head], pages.layout.block_size,
                   [&](int32_t entry, int64_t slot, int32_t count) {
                     copy(at + entry * array.bytes, array.memory + slot * array.bytes,
                          count * array.bytes);
                   });
      }
      at += lengths[head] * array.bytes;
    }
    host_pages = host_pages.subspan(offloaded.pages[head]);
  }
}

// Entries of tokens after the last turn have no score (TurnRun::scored_end): what lies in their pages
// may be anything. Sets it to 0.
void ForgetUnscored(const Context& context, std::span<const int32_t> lengths,
                    const KvLayout& layout, std::string* body) {
  if (!context.plan.ScoresTurns()) return;
  const auto seen = static_cast<int32_t>(context.num_seen);
  const int32_t end = ScoredEnd({seen, seen}, context.plan, context.append_ranges);
  const size_t vector = BytesOf(layout.dtype, layout.head_dim);
  char* at = body->data();
  for (const int32_t length : lengths) {
    const char* positions = at + 2 * length * vector;
    for (int32_t i = 0; i < length; ++i) {
      int32_t position = 0;
      std::memcpy(&position, positions + i * sizeof(position), sizeof(position));
      if (position >= end)
        std::memset(at + 2 * length * vector + (length + i) * sizeof(float), 0, sizeof(float));
    }
    at += length * EntryBytes(layout);
  }
}

// Whether all numbers of keys or values are finite; of quantized blocks, all scales.
bool AreFinite(DType dtype, std::string_view bytes) {
  size_t stride = sizeof(uint16_t);
  uint16_t exponent = 0x7c00;  // all bits set: infinite, or not a number
  switch (dtype) {
    case DType::kF32:
      for (size_t at = 0; at < bytes.size(); at += sizeof(uint32_t)) {
        uint32_t bits = 0;
        std::memcpy(&bits, bytes.data() + at, sizeof(bits));
        if ((bits & 0x7f800000u) == 0x7f800000u) return false;
      }
      return true;
    case DType::kE4M3:
      return std::none_of(bytes.begin(), bytes.end(),
                          [](char byte) { return (byte & 0x7f) == 0x7f; });
    case DType::kBF16:
      exponent = 0x7f80;
      break;
    case DType::kF16:
      break;
    default:
      stride = BytesOf(dtype, BlockElements(dtype));
  }
  for (size_t at = 0; at < bytes.size(); at += stride) {
    uint16_t bits = 0;
    std::memcpy(&bits, bytes.data() + at, sizeof(bits));
    if ((bits & exponent) == exponent) return false;
  }
  return true;
}

// Positions of a head in a window: the newest tokens, each once, for kernels find places by them.
bool AreNewest(std::vector<int32_t> positions, int64_t seen) {
  std::sort(positions.begin(), positions.end());
  const auto first = seen - static_cast<int64_t>(positions.size());
  for (size_t i = 0; i < positions.size(); ++i) {
    if (positions[i] != first + static_cast<int64_t>(i)) return false;
  }
  return true;
}

// The body is untrusted. Positions and scores must be in range, because they choose entries and
// look up angles, and keys and values must be finite.
absl::Status CheckBody(const ContextFile& file, const ContextHome& home) {
  const size_t vector = BytesOf(home.layout.dtype, home.layout.head_dim);
  const bool ranks = file.context->plan.rule.rolling;
  const bool samples = file.context->plan.retention->Samples() != nullptr;
  const size_t budget_heads = static_cast<size_t>(home.limits.BudgetHeads());
  const char* at = file.body.data();
  for (size_t head = 0; head < file.lengths.size(); ++head) {
    const int32_t length = file.lengths[head];
    const char* positions = at + 2 * length * vector;
    if (!AreFinite(home.layout.dtype, {at, 2 * length * vector}))
      return absl::DataLossError("a key or value is infinite, or no number");
    const char* numbers = positions + length * sizeof(int32_t);
    std::vector<int32_t> all(length);
    std::memcpy(all.data(), positions, all.size() * sizeof(int32_t));
    for (const int32_t position : all) {
      if (position < (samples ? -1 : 0) || position >= (ranks ? length : file.context->num_seen))
        return absl::DataLossError(absl::StrCat("an entry has the position ", position));
    }
    if (head >= budget_heads && !ranks && !AreNewest(std::move(all), file.context->num_seen))
      return absl::DataLossError("a window does not hold the newest tokens");
    for (int32_t i = 0; i < 3 * length; ++i) {
      float number = 0.0f;
      std::memcpy(&number, numbers + i * sizeof(float), sizeof(number));
      const bool counts = samples && i < length;  // weights and counts, no scores
      if (std::isnan(number) || (counts && (number < 0.0f || std::isinf(number))))
        return absl::DataLossError(absl::StrCat("an entry has the score ", number));
    }
    at += length * EntryBytes(home.layout);
  }
  return absl::OkStatus();
}

// The scheduler counts a request's pages by its plan before it has them: spans within it at these
// lengths are so between them. A compaction that is to come makes new ones.
absl::Status CheckGrowth(const ContextFile& file, const EngineLimits& limits) {
  const CachePlan& plan = file.context->plan;
  const int64_t seen = file.context->num_seen;
  const int64_t ends = plan.retention->InitialSpanEnd(plan);
  int64_t most = std::max<int64_t>(seen, limits.max_model_len);
  if (!plan.retention->ReportsPrompt() && seen <= ends) most = std::min(most, ends);
  for (const int64_t tokens : {seen, std::min(seen + limits.block_size, most), most}) {
    int64_t pages = 0, of_state = 0;
    bool fits = true;
    for (size_t head = 0; head < file.spans.size(); ++head) {
      const int32_t entries = file.spans[head].PeakEntries(tokens);
      const auto layer = static_cast<int>(head) / limits.num_kv_heads;
      fits = fits && (layer >= limits.BudgetLayers() || entries <= plan.PeakEntries(tokens));
      pages += PagesOf(entries, limits.block_size);
      if (layer < limits.BudgetLayers()) of_state += PagesOf(entries, limits.block_size);
    }
    pages += KvCacheManager::SlabsFor(limits, plan, of_state);
    if (!fits || pages > KvCacheManager::PagesFor(limits, plan, tokens))
      return absl::DataLossError("its heads hold more than its policy lets them");
  }
  return absl::OkStatus();
}

// The heads' spans as the plan has them, and the turns since; nullopt: only reports tell.
std::vector<std::optional<HeadSpan>> SpansAsPlanned(const Context& context,
                                                    const EngineLimits& limits) {
  CachePlan plan = context.first_plan;
  std::vector<std::optional<HeadSpan>> planned;
  const int heads = limits.num_layers * limits.num_kv_heads;
  planned.reserve(heads);
  for (int head = 0; head < heads; ++head)
    planned.push_back(KvCacheManager::SpanAfter(limits, plan, head, context.num_seen));
  std::vector<HeadSpan> full(static_cast<size_t>(limits.BudgetHeads()));
  for (size_t head = 0; head < full.size(); ++head) {
    if (!planned[head].has_value()) return planned;
    full[head] = *planned[head];
  }
  for (const TokenRange& range : context.append_ranges) {
    if (!RaisesBudget(range, plan)) continue;
    const std::vector<int32_t> keep =
        KeepAfterAppend(range, plan, context.spec, context.append_ranges, full);
    if (!keep.empty() && plan.share.scope != BudgetScope::kHead) {  // heads shared
      std::fill(planned.begin(), planned.begin() + static_cast<std::ptrdiff_t>(full.size()),
                std::nullopt);
      return planned;
    }
    const int32_t cap = BudgetAfterAppend(plan, context.spec, range.end).cap;
    for (size_t head = 0; head < full.size(); ++head) {
      if (!keep.empty()) full[head].dropped = range.end - keep[head];
      if (cap != plan.cap) full[head] = full[head].Raised(range.begin, cap - plan.cap);
    }
    plan.cap = cap;
  }
  std::copy(full.begin(), full.end(), planned.begin());
  return planned;
}

absl::Status CheckHeads(const ContextFile& file, const ContextHome& home) {
  const size_t heads = static_cast<size_t>(home.limits.num_layers) * home.limits.num_kv_heads;
  if (file.spans.size() != heads || file.lengths.size() != heads || file.victims.size() != heads)
    return absl::DataLossError("it has another number of heads");
  const CachePlan& plan = file.context->plan;
  const int64_t seen = file.context->num_seen;
  const std::vector<std::optional<HeadSpan>> planned = SpansAsPlanned(*file.context, home.limits);
  uint64_t bytes = 0;
  for (size_t head = 0; head < heads; ++head) {
    const HeadSpan& span = file.spans[head];
    const int32_t length = file.lengths[head], victim = file.victims[head];
    const bool counted = span.dropped >= 0 && span.cap >= 1 && span.drop >= 0 &&
                         span.drop <= span.cap && length == span.EntriesAfter(seen) && length > 0;
    const bool as_planned = !planned[head].has_value() || span == *planned[head];
    const bool may_go_on = length < span.cap || victim >= 0 || plan.CompactsAfter(seen) ||
                           plan.retention->Samples() != nullptr;
    if (!counted || !as_planned || victim < -1 || victim >= length || !may_go_on)
      return absl::DataLossError(absl::StrCat("head ", head, " does not hold together"));
    bytes += length * EntryBytes(home.layout);
  }
  if (bytes != file.body.size()) return absl::DataLossError("its entries are not all there");
  return CheckGrowth(file, home.limits);
}

absl::StatusOr<std::string_view> GetPart(const char* name, Reader* reader) {
  const auto size = reader->Get<uint64_t>();
  const std::string_view digest = reader->Take(sizeof(Sha256Digest));
  const std::string_view part = reader->Take(size);
  if (!reader->ok()) return absl::DataLossError(absl::StrCat("its ", name, " is cut short"));
  if (AsText(DigestOf(part)) == digest) return part;
  return absl::DataLossError(
      absl::StrCat("its ", name, " was changed: the checksum is another one"));
}

absl::StatusOr<std::string_view> GetHead(std::string_view bytes, Reader* reader) {
  if (bytes.size() < kMagic.size() || !bytes.starts_with(kMagicOfAll))
    return absl::DataLossError("it is no context");
  if (!bytes.starts_with(kMagic)) {
    return absl::FailedPreconditionError(
        "it was written by a newer version of this program, or by an older one; read the text "
        "again");
  }
  reader->Take(kMagic.size());
  return GetPart("head", reader);
}

// As AddHome() has written it.
absl::Status CheckHome(const ContextHome& home, Reader* reader) {
  Writer wanted;
  AddHome(home, &wanted);
  const std::string_view found = reader->Take(wanted.bytes().size());
  if (found == wanted.bytes()) return absl::OkStatus();
  const size_t model = sizeof(uint64_t) + sizeof(Sha256Digest);
  const bool of_this_model = found.substr(0, model) == wanted.bytes().substr(0, model);
  return absl::FailedPreconditionError(
      of_this_model ? "its entries have another number format (--kv-cache-dtype) or window "
                      "(--max-model-len) than this server's"
                    : "it is of another model or tokenizer than this server's");
}

void AddPart(std::string_view part, std::string* bytes) {
  const uint64_t size = part.size();
  bytes->append(reinterpret_cast<const char*>(&size), sizeof(size));
  bytes->append(AsText(DigestOf(part)));
  bytes->append(part);
}

}  // namespace

std::string EncodeContext(const Context& context, const OffloadedCache& offloaded,
                          const OffloadMemory& memory, const ContextHome& home) {
  const OffloadedHeads heads = memory.HeadsOf(offloaded.index);
  const std::span<const int32_t> lengths(heads.lengths, memory.num_heads);
  Writer head;
  AddHome(home, &head);
  AddContext(context, home, &head);
  head.AddAll(std::span<const HeadSpan>(offloaded.spans));
  head.AddAll(lengths);
  head.AddAll(std::span<const int32_t>(heads.victims, memory.num_heads));
  std::string body(context.entries * EntryBytes(home.layout), '\0');
  const size_t budget_heads = static_cast<size_t>(home.limits.BudgetHeads());
  const auto lasting = [&](size_t of_head) {
    return LastingOf(context, of_head < budget_heads, memory.pages);
  };
  ForEachPiece(lengths, offloaded, lasting, [&](size_t at, const uint8_t* from, size_t size) {
    std::memcpy(body.data() + at, from, size);
  });
  ForgetUnscored(context, lengths, home.layout, &body);
  std::string bytes(kMagic);
  bytes.reserve(kMagic.size() + head.bytes().size() + body.size() + 128);
  AddPart(head.bytes(), &bytes);
  AddPart(body, &bytes);
  return bytes;
}

absl::StatusOr<ContextFile> DecodeContext(std::string_view bytes, const ContextHome& home) {
  Reader parts(bytes);
  HYDRANT_ASSIGN_OR_RETURN(const std::string_view head, GetHead(bytes, &parts));
  Reader reader(head);
  HYDRANT_RETURN_IF_ERROR(CheckHome(home, &reader));
  ContextFile file;
  HYDRANT_ASSIGN_OR_RETURN(file.context, GetContext(&reader, home));
  file.spans = reader.GetAll<HeadSpan>();
  file.lengths = reader.GetAll<int32_t>();
  file.victims = reader.GetAll<int32_t>();
  HYDRANT_ASSIGN_OR_RETURN(file.body, GetPart("body", &parts));
  if (!reader.AtEnd() || !parts.AtEnd())
    return absl::DataLossError("there are more or fewer bytes than it says");
  HYDRANT_RETURN_IF_ERROR(CheckHeads(file, home));
  HYDRANT_RETURN_IF_ERROR(CheckBody(file, home));
  for (const int32_t length : file.lengths) {
    file.context->entries += length;
    file.pages.push_back(static_cast<int32_t>(PagesOf(length, home.layout.block_size)));
    file.context->pages += file.pages.back();
  }
  return file;
}

size_t MaxContextBytes(const ContextHome& home) {
  constexpr size_t kTexts = size_t{1} << 20;  // names, parameters, checksums
  const EngineLimits& limits = home.limits;
  const auto entries = static_cast<size_t>(limits.NumContextPages()) * home.layout.block_size;
  const size_t heads = static_cast<size_t>(limits.num_layers) * limits.num_kv_heads;
  const auto tokens = static_cast<size_t>(limits.max_model_len);
  return kTexts + entries * EntryBytes(home.layout) +
         heads * (sizeof(HeadSpan) + 2 * sizeof(int32_t)) +
         4 * tokens * (sizeof(TokenId) + sizeof(TokenRange));
}

void WriteContext(const ContextFile& file, const OffloadedCache& offloaded,
                  const OffloadMemory& memory) {
  const OffloadedHeads heads = memory.HeadsOf(offloaded.index);
  std::copy(file.lengths.begin(), file.lengths.end(), heads.lengths);
  std::copy(file.victims.begin(), file.victims.end(), heads.victims);
  std::transform(file.spans.begin(), file.spans.end(), heads.caps,
                 [](const HeadSpan& span) { return span.cap; });
  const auto all = [&](size_t) { return memory.pages; };
  ForEachPiece(file.lengths, offloaded, all, [&](size_t at, uint8_t* to, size_t size) {
    std::memcpy(to, file.body.data() + at, size);
  });
}

}  // namespace hydrant
