// The scheduler's events as wire messages. Stateless.
#ifndef HYDRANT_SERVER_WIRE_WIRE_EVENTS_H_
#define HYDRANT_SERVER_WIRE_WIRE_EVENTS_H_

#include <cstdint>

#include "hydrant/v1/hydrant.pb.h"
#include "scheduler/request.h"

namespace hydrant {

v1::Usage ToWireUsage(const Usage& usage);
v1::RetainedMass ToWireMass(const RetainedMass& mass);
// With the first `top` tokens by rank.
v1::TokenLogprobs ToWireLogprobs(const TokenLogprobs& logprobs, uint32_t top);
v1::Progress ToWireProgress(const Progress& progress);
// `index`: the finished sample.
v1::Finished ToWireFinished(const Finished& finished, uint32_t index);

}  // namespace hydrant

#endif  // HYDRANT_SERVER_WIRE_WIRE_EVENTS_H_
