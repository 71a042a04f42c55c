// Contexts on the wire. Stateless; any thread may call.
#ifndef HYDRANT_SERVER_WIRE_CONTEXT_CONVERSION_H_
#define HYDRANT_SERVER_WIRE_CONTEXT_CONVERSION_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "hydrant/v1/hydrant.pb.h"
#include "scheduler/context_archive.h"
#include "scheduler/context_file.h"
#include "scheduler/request.h"
#include "server/wire/served_model.h"
#include "server/wire/status_details.h"

namespace hydrant {

// The model, layout and limits that a context must match to be used with this model.
ContextHome HomeOf(const ServedModel& model);

// A request that prefills its prompt, keeps its cache and generates nothing. Errors as
// ConvertGenerateRequest(); Unimplemented where this server keeps no contexts.
absl::StatusOr<Request> ConvertCompressRequest(const ServedModel& model,
                                               const v1::CompressContextRequest& wire,
                                               int64_t unix_now);

// InvalidArgument where the handle is empty or not a valid handle.
absl::Status CheckHandle(const std::string& handle);

v1::Context ToWireContext(const ServedModel& model, const ContextArchive::Entry& entry);

// Maps an error of the archive to the refusal sent to the client.
Refusal ContextRefusal(const absl::Status& status);

}  // namespace hydrant

#endif  // HYDRANT_SERVER_WIRE_CONTEXT_CONVERSION_H_
