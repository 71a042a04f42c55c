// Protobuf messages to and from gRPC's byte buffers. The service takes raw bytes because generated
// handlers answer a message that does not parse (a string that is no UTF-8, say) with an empty
// INTERNAL; here the field is named.
#ifndef HYDRANT_SERVER_WIRE_WIRE_MESSAGE_H_
#define HYDRANT_SERVER_WIRE_WIRE_MESSAGE_H_

#include <google/protobuf/message.h>
#include <grpcpp/support/byte_buffer.h>

#include "absl/status/status.h"

namespace hydrant {

// InvalidArgument names the field that is not valid UTF-8, or says that the bytes are no such
// message.
absl::Status ParseWire(const grpc::ByteBuffer& bytes, google::protobuf::Message* message);

grpc::ByteBuffer ToWire(const google::protobuf::Message& message);

}  // namespace hydrant

#endif  // HYDRANT_SERVER_WIRE_WIRE_MESSAGE_H_
