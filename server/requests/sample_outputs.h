// Output of a request's samples that is not sent yet, and the request's end once all samples have
// ended. Each sample has a delta that grows until it is sent. No gRPC, no lock: a stream keeps it
// under its own mutex.
#ifndef HYDRANT_SERVER_REQUESTS_SAMPLE_OUTPUTS_H_
#define HYDRANT_SERVER_REQUESTS_SAMPLE_OUTPUTS_H_

#include <cstddef>
#include <deque>
#include <optional>
#include <variant>
#include <vector>

#include "hydrant/v1/hydrant.pb.h"
#include "scheduler/request.h"
#include "server/wire/output_options.h"

namespace hydrant {

class SampleOutputs {
 public:
  explicit SampleOutputs(const OutputOptions& options)
      : options_(options), samples_(options.num_samples) {}

  // `index`: the sample, below size().
  void Append(size_t index, const Delta& delta);
  void Append(const PromptLogprobs& logprobs);
  void Append(const PromptEntries& entries);
  void End(size_t index, const Finished& finished);
  void End(size_t index, const Failed& failed);

  size_t size() const { return samples_.size(); }
  // Whether all samples before it have ended: then it reports the request's progress.
  bool IsFirstLive(size_t index) const;
  bool HasFailed() const { return failed_.has_value(); }  // any sample

  // Bytes of text, ids and logprobs not sent yet. They are cut into messages not much longer than a
  // connection's buffers, because the kernel takes a message whole.
  size_t num_bytes() const { return num_bytes_; }
  bool HasNext() const;
  // The next message about the prompt, else a delta or finished of the samples, round-robin; false:
  // nothing to send yet.
  bool TakeNext(v1::GenerateResponse* message);
  void Drop();  // discards output not sent yet

  // The request's end once all samples have ended: the first failure; else `length` if any sample
  // ended so, with the usage of UsageOfSamples().
  using Ending = std::variant<std::monostate, Finished, Failed>;
  Ending RequestEnd() const;

 private:
  struct Sample {
    // Deltas not sent yet: full ones (kFullBytes), and one that grows.
    std::deque<v1::Delta> deltas;
    std::optional<v1::Finished> finished;  // sent after the deltas
    std::optional<Usage> usage;            // set: the sample has ended
    bool has_begun = false;                // its first delta was sent
  };
  bool HasDelta(const Sample& sample) const;
  bool HasNext(const Sample& sample) const {
    return HasDelta(sample) || sample.finished.has_value();
  }

  OutputOptions options_;
  std::deque<v1::GenerateResponse> of_prompt_;  // PromptLogprobs, then KeptEntries
  std::vector<Sample> samples_;
  size_t next_ = 0;  // next sample to serve
  size_t num_bytes_ = 0;
  FinishReason reason_ = FinishReason::kStop;
  std::optional<Failed> failed_;  // the first failure
};

// completion_tokens, kv_pages_peak, preemptions, swaps and shrinks are sums, decode_us is the
// longest, the other fields are the first sample's. REQUIRES: at least one sample
Usage UsageOfSamples(const std::vector<Usage>& samples);

}  // namespace hydrant

#endif  // HYDRANT_SERVER_REQUESTS_SAMPLE_OUTPUTS_H_
