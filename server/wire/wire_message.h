// Protobuf messages to and from gRPC's byte buffers. The service takes raw bytes because generated
// handlers answer a message that does not parse (for example, a string that is not UTF-8) with an
// empty INTERNAL; this code names the field.
#ifndef HYDRANT_SERVER_WIRE_WIRE_MESSAGE_H_
#define HYDRANT_SERVER_WIRE_WIRE_MESSAGE_H_

#include <google/protobuf/message.h>
#include <grpcpp/support/byte_buffer.h>

#include "absl/status/status.h"

namespace hydrant {

// InvalidArgument names the field that is not valid UTF-8, or reports that the bytes are not such
// a message.
absl::Status ParseWire(const grpc::ByteBuffer& bytes, google::protobuf::Message* message);

grpc::ByteBuffer ToWire(const google::protobuf::Message& message);

}  // namespace hydrant

#endif  // HYDRANT_SERVER_WIRE_WIRE_MESSAGE_H_
