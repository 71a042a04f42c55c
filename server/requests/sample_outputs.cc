#include "server/requests/sample_outputs.h"

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <utility>

#include "server/wire/wire_events.h"

namespace hydrant {
namespace {

constexpr size_t kFullBytes = size_t{64} << 10;

// All tokens have the same number of top tokens.
size_t BytesOf(const google::protobuf::RepeatedPtrField<v1::TokenLogprobs>& tokens) {
  if (tokens.empty()) return 0;
  return tokens.size() * (sizeof(v1::TokenLogprobs) +
                          tokens[0].top_token_ids_size() * (sizeof(TokenId) + sizeof(float)));
}

size_t BytesOf(const v1::Delta& delta) {
  return delta.text().size() + delta.token_ids_size() * sizeof(TokenId) + BytesOf(delta.logprobs());
}

}  // namespace

void SampleOutputs::Append(size_t index, const Delta& delta) {
  if (!delta.token_id.has_value() && delta.text.empty()) return;
  std::deque<v1::Delta>& deltas = samples_[index].deltas;
  if (deltas.empty() || BytesOf(deltas.back()) >= kFullBytes) deltas.emplace_back();
  v1::Delta& growing = deltas.back();
  num_bytes_ -= BytesOf(growing);
  if (delta.token_id.has_value()) growing.add_token_ids(*delta.token_id);
  if (delta.logprobs.has_value())
    *growing.add_logprobs() = ToWireLogprobs(**delta.logprobs, options_.top_logprobs);
  growing.mutable_text()->append(delta.text);
  num_bytes_ += BytesOf(growing);
}

void SampleOutputs::Append(const PromptLogprobs& logprobs) {
  uint32_t position = 1;
  v1::PromptLogprobs* growing = nullptr;
  for (const TokenLogprobs& token : logprobs.tokens) {
    if (growing == nullptr || BytesOf(growing->tokens()) >= kFullBytes) {
      growing = of_prompt_.emplace_back().mutable_prompt_logprobs();
      growing->set_first_position(position);
    }
    *growing->add_tokens() = ToWireLogprobs(token, options_.top_prompt_logprobs);
    ++position;
  }
}

void SampleOutputs::Append(const PromptEntries& entries) {
  size_t bytes = kFullBytes;  // of the growing message
  const auto growing = [&](size_t more) {
    if (bytes >= kFullBytes) {
      of_prompt_.emplace_back();
      bytes = 0;
    }
    bytes += more;
    return of_prompt_.back().mutable_kept_entries();
  };
  uint32_t token = 0;
  for (const std::string& text : entries.token_texts) {
    v1::KeptEntries* const message = growing(sizeof(std::string) + text.size());
    if (message->token_texts().empty()) message->set_first_token(token);
    message->add_token_texts(text);
    ++token;
  }
  const KeptEntries& kept = entries.kept;
  for (int layer = 0; layer < kept.num_layers(); ++layer) {
    for (int head = 0; head < kept.num_kv_heads(); ++head) {
      const std::span<const uint8_t> tokens = kept.OfHead(layer, head);
      v1::KeptByHead* const by_head = growing(sizeof(v1::KeptByHead) + tokens.size())->add_heads();
      by_head->set_layer(layer);
      by_head->set_head(head);
      by_head->set_tokens(tokens.data(), tokens.size());
    }
  }
}

void SampleOutputs::End(size_t index, const Finished& finished) {
  samples_[index].finished = ToWireFinished(finished, static_cast<uint32_t>(index));
  samples_[index].usage = finished.usage;
  if (finished.reason == FinishReason::kLength) reason_ = FinishReason::kLength;
}

void SampleOutputs::End(size_t index, const Failed& failed) {
  samples_[index].usage = failed.usage;
  if (!failed_.has_value()) failed_ = failed;
}

bool SampleOutputs::IsFirstLive(size_t index) const {
  return std::all_of(samples_.begin(), samples_.begin() + static_cast<std::ptrdiff_t>(index),
                     [](const Sample& sample) { return sample.usage.has_value(); });
}

bool SampleOutputs::HasDelta(const Sample& sample) const {
  if (sample.deltas.empty()) return false;
  const bool waits = sample.has_begun && !sample.usage.has_value() && sample.deltas.size() == 1;
  return !waits ||
         std::cmp_greater_equal(sample.deltas.front().token_ids_size(), options_.stream_interval);
}

bool SampleOutputs::HasNext() const {
  return !of_prompt_.empty() || std::any_of(samples_.begin(), samples_.end(),
                                            [this](const Sample& one) { return HasNext(one); });
}

bool SampleOutputs::TakeNext(v1::GenerateResponse* message) {
  if (!of_prompt_.empty()) {
    message->Swap(&of_prompt_.front());
    of_prompt_.pop_front();
    return true;
  }
  for (size_t turn = 0; turn < samples_.size(); ++turn) {
    const size_t index = (next_ + turn) % samples_.size();
    Sample& sample = samples_[index];
    if (HasDelta(sample)) {
      sample.has_begun = true;
      v1::Delta& first = sample.deltas.front();
      num_bytes_ -= BytesOf(first);
      first.set_index(static_cast<uint32_t>(index));
      message->mutable_delta()->Swap(&first);
      sample.deltas.pop_front();
    } else if (sample.finished.has_value()) {
      *message->mutable_finished() = *std::move(sample.finished);
      sample.finished.reset();
    } else {
      continue;
    }
    next_ = index + 1;
    return true;
  }
  return false;
}

void SampleOutputs::Drop() {
  for (Sample& sample : samples_) {
    sample.deltas.clear();
    sample.finished.reset();
  }
  of_prompt_.clear();
  num_bytes_ = 0;
}

SampleOutputs::Ending SampleOutputs::RequestEnd() const {
  std::vector<Usage> usages;
  for (const Sample& sample : samples_) {
    if (!sample.usage.has_value()) return std::monostate();
    usages.push_back(*sample.usage);
  }
  const Usage usage = UsageOfSamples(usages);
  if (!failed_.has_value()) return Finished{.reason = reason_, .usage = usage};
  Failed failed = *failed_;
  failed.usage = usage;
  return failed;
}

Usage UsageOfSamples(const std::vector<Usage>& samples) {
  Usage total = samples.front();
  for (size_t i = 1; i < samples.size(); ++i) {
    total.completion_tokens += samples[i].completion_tokens;
    total.kv_pages_peak += samples[i].kv_pages_peak;
    total.kv_pages_mean += samples[i].kv_pages_mean;
    total.preemptions += samples[i].preemptions;
    total.swaps += samples[i].swaps;
    total.shrinks += samples[i].shrinks;
    total.decode_us = std::max(total.decode_us, samples[i].decode_us);
    total.swapped_us = std::max(total.swapped_us, samples[i].swapped_us);
    total.preempted_us = std::max(total.preempted_us, samples[i].preempted_us);
  }
  return total;
}

}  // namespace hydrant
