#include "tools/load/run/workload.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "kernels/status_macros.h"

namespace hydrant::load {
namespace {

using Random = std::mt19937_64;

// Random streams: per request, shared prefix, trace hash, conversation.
enum class Stream : uint64_t { kRequest = 1, kPrefix = 2, kHash = 3, kConversation = 4 };

Random RandomOf(uint64_t seed, Stream stream, int64_t index) {
  std::seed_seq sequence = {seed, seed >> 32, static_cast<uint64_t>(stream),
                            static_cast<uint64_t>(index), static_cast<uint64_t>(index) >> 32};
  return Random(sequence);
}

absl::Status OutOfRange(const char* option, double value, const char* range) {
  return absl::InvalidArgumentError(absl::StrCat(option, ": ", value, " is outside ", range));
}

absl::Status Check(const WorkloadOptions& options) {
  if (options.num_requests < 1)
    return OutOfRange("num-prompts", static_cast<double>(options.num_requests), "[1, ...]");
  if (options.input_tokens < 1)
    return OutOfRange("input-len", static_cast<double>(options.input_tokens), "[1, ...]");
  if (options.output_tokens < 1)
    return OutOfRange("output-len", static_cast<double>(options.output_tokens), "[1, ...]");
  if (!(options.range_ratio >= 0.0 && options.range_ratio < 1.0))
    return OutOfRange("range-ratio", options.range_ratio, "[0, 1)");
  if (options.text.empty() && options.vocab_size < 1)
    return absl::InvalidArgumentError("dataset: the vocabulary is empty and there is no text");
  if (!(options.trace_length_scale > 0.0))
    return OutOfRange("trace-length-scale", options.trace_length_scale, "(0, ...]");
  if (options.shared_prefixes < 0 || options.shared_prefix_tokens < 0 ||
      (options.shared_prefixes == 0) != (options.shared_prefix_tokens == 0)) {
    return absl::InvalidArgumentError(
        "prefix-len and num-prefixes: both above 0, or neither is given");
  }
  if (options.turns < 1) return OutOfRange("turns", static_cast<double>(options.turns), "[1, ...]");
  if (!(options.think_seconds >= 0.0))
    return OutOfRange("think-time", options.think_seconds, "[0, ...]");
  if (options.turns > 1 && !options.trace.empty())
    return absl::InvalidArgumentError("turns: a trace has its own requests; give one of the two");
  for (const double rate : options.fault_rates) {
    if (!(rate >= 0.0 && rate <= 1.0)) return OutOfRange("fault rate", rate, "[0, 1]");
  }
  const double faults =
      std::accumulate(options.fault_rates.begin(), options.fault_rates.end(), 0.0);
  if (faults > 1.0 + 1e-9) return OutOfRange("fault rates: their sum", faults, "[0, 1]");
  return absl::OkStatus();
}

// Appends `count` tokens: a random piece of the text, wrapping at its end, or random ids.
void AppendTokens(const WorkloadOptions& options, int64_t count, Random* random,
                  std::vector<uint32_t>* prompt) {
  if (options.text.empty()) {
    std::uniform_int_distribution<uint32_t> id(0, options.vocab_size - 1);
    for (; count > 0; --count) prompt->push_back(id(*random));
    return;
  }
  size_t at = (*random)() % options.text.size();
  for (; count > 0; --count) {
    prompt->push_back(options.text[at]);
    at = at + 1 == options.text.size() ? 0 : at + 1;
  }
}

int64_t DrawLength(int64_t length, double ratio, Random* random) {
  const auto at = [&](double factor) {
    return std::max<int64_t>(1, std::llround(factor * static_cast<double>(length)));
  };
  return std::uniform_int_distribution<int64_t>(at(1 - ratio), at(1 + ratio))(*random);
}

std::vector<uint32_t> PromptOf(const WorkloadOptions& options, int64_t input_tokens, bool begins,
                               Random* random) {
  std::vector<uint32_t> prompt;
  if (options.shared_prefixes > 0 && begins) {
    const auto which =
        static_cast<int64_t>((*random)() % static_cast<uint64_t>(options.shared_prefixes));
    Random of_prefix = RandomOf(options.seed, Stream::kPrefix, which);
    AppendTokens(options, options.shared_prefix_tokens, &of_prefix, &prompt);
  }
  AppendTokens(options, input_tokens, random, &prompt);
  return prompt;
}

// Equal hashes give equal tokens; their number follows the scale.
std::vector<uint32_t> PromptOf(const WorkloadOptions& options, const TracedRequest& traced,
                               Random* random) {
  const auto scaled = [&](int64_t tokens) {
    return std::max<int64_t>(
        1, std::llround(static_cast<double>(tokens) * options.trace_length_scale));
  };
  const int64_t length = scaled(traced.input_tokens), of_hash = scaled(kTokensPerHash);
  std::vector<uint32_t> prompt;
  for (const int64_t hash : traced.hashes) {
    Random of_these = RandomOf(options.seed, Stream::kHash, hash);
    AppendTokens(options, of_hash, &of_these, &prompt);
  }
  if (static_cast<int64_t>(prompt.size()) < length)
    AppendTokens(options, length - static_cast<int64_t>(prompt.size()), random, &prompt);
  prompt.resize(length);
  return prompt;
}

int DrawArm(const WorkloadOptions& options, Random* random) {
  return std::discrete_distribution<int>(options.arm_weights.begin(),
                                         options.arm_weights.end())(*random);
}

double DrawThink(const WorkloadOptions& options, Random* random) {
  if (options.think_seconds == 0.0) return 0.0;
  return std::exponential_distribution<double>(1.0 / options.think_seconds)(*random);
}

// One number in [0, 1) selects the fault, if any.
void DrawFault(const WorkloadOptions& options, Random* random, PlannedRequest* request) {
  double draw = std::uniform_real_distribution<double>(0.0, 1.0)(*random);
  for (int i = 0; i < kNumFaults; ++i) {
    if (draw < options.fault_rates[i]) {
      request->fault = static_cast<Fault>(i + 1);
      break;
    }
    draw -= options.fault_rates[i];
  }
  switch (request->fault) {
    case Fault::kCancel:
    case Fault::kDisconnect:
      request->cancel_after =
          std::uniform_int_distribution<int64_t>(0, request->max_tokens - 1)(*random);
      return;
    case Fault::kDeadline:
      request->deadline = options.fault_deadline;
      return;
    case Fault::kSlowReader:
      request->read_delay = options.slow_read_delay;
      return;
    case Fault::kOversized:
      request->prompt.resize(options.oversized_tokens, 0);
      return;
    case Fault::kMalformed:
    case Fault::kNone:
      return;
  }
}

}  // namespace

absl::StatusOr<Workload> Workload::Create(WorkloadOptions options) {
  if (!options.trace.empty())
    options.num_requests =
        std::min<int64_t>(options.num_requests, static_cast<int64_t>(options.trace.size()));
  HYDRANT_RETURN_IF_ERROR(Check(options));
  return Workload(std::move(options));
}

PlannedRequest Workload::Make(int64_t index) const {
  Random random = RandomOf(options_.seed, Stream::kRequest, index);
  PlannedRequest request{.index = index};
  Random of_conversation = RandomOf(options_.seed, Stream::kConversation, index / turns());
  request.arm = DrawArm(options_, turns() > 1 ? &of_conversation : &random);
  request.seed = random() >> 1;
  if (options_.trace.empty()) {
    const int64_t input = DrawLength(options_.input_tokens, options_.range_ratio, &random);
    request.max_tokens = DrawLength(options_.output_tokens, options_.range_ratio, &random);
    const bool begins = index % turns() == 0;
    request.prompt = PromptOf(options_, input, begins, &random);
    if (!begins) request.think = DrawThink(options_, &random);
  } else {
    const TracedRequest& traced = options_.trace[index];
    request.max_tokens = std::max<int64_t>(
        1, std::llround(static_cast<double>(traced.output_tokens) * options_.trace_length_scale));
    request.prompt = PromptOf(options_, traced, &random);
  }
  DrawFault(options_, &random, &request);
  return request;
}

}  // namespace hydrant::load
