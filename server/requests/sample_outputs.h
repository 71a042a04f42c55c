// What the samples of a request have brought and its client has not been sent yet, and how the
// request ends when all of them have. Each sample has a delta that grows until it is sent. No gRPC,
// no lock: a stream keeps it under its own mutex.
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

  // `index`: of the sample, below size().
  void Append(size_t index, const Delta& delta);
  void Append(const PromptLogprobs& logprobs);
  void End(size_t index, const Finished& finished);
  void End(size_t index, const Failed& failed);

  size_t size() const { return samples_.size(); }
  // Whether no sample before it is still at work: then it speaks for the request's progress.
  bool IsFirstLive(size_t index) const;
  bool HasFailed() const { return failed_.has_value(); }  // a sample

  // Text, ids and their logprobs that wait to be sent, as messages that are not much longer than a
  // connection's buffers: the kernel takes a message whole.
  size_t num_bytes() const { return num_bytes_; }
  bool HasNext() const;
  // The next of the prompt's logprobs, else delta or finished of the samples in turn; false:
  // nothing is to be sent yet.
  bool TakeNext(v1::GenerateResponse* message);
  void Drop();  // what waits

  // Of the request, when all of its samples have ended: as the first that failed; else `length`
  // where one of them has, with its usage (UsageOfSamples).
  using Ending = std::variant<std::monostate, Finished, Failed>;
  Ending RequestEnd() const;

 private:
  struct Sample {
    // What waits to be sent: full ones (kFullBytes), and one that grows.
    std::deque<v1::Delta> deltas;
    std::optional<v1::Finished> finished;  // the same, after them
    std::optional<Usage> usage;            // set: it has ended
    bool has_begun = false;                // its first delta was sent
  };
  bool HasDelta(const Sample& sample) const;
  bool HasNext(const Sample& sample) const {
    return HasDelta(sample) || sample.finished.has_value();
  }

  OutputOptions options_;
  std::deque<v1::PromptLogprobs> of_prompt_;
  std::vector<Sample> samples_;
  size_t next_ = 0;  // whose turn it is
  size_t num_bytes_ = 0;
  FinishReason reason_ = FinishReason::kStop;
  std::optional<Failed> failed_;  // the first that has
};

// completion_tokens, kv_pages_peak, preemptions, swaps and shrinks are sums, decode_us is the
// longest, all else the first sample's. REQUIRES: there is one
Usage UsageOfSamples(const std::vector<Usage>& samples);

}  // namespace hydrant

#endif  // HYDRANT_SERVER_REQUESTS_SAMPLE_OUTPUTS_H_
