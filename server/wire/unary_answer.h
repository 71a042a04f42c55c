// A unary method that is answered immediately from the server's state. Include it in .cc
// files only.
#ifndef HYDRANT_SERVER_WIRE_UNARY_ANSWER_H_
#define HYDRANT_SERVER_WIRE_UNARY_ANSWER_H_

#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>

#include <variant>

#include "server/wire/status_details.h"
#include "server/wire/wire_message.h"

namespace hydrant {

// ask(const Wire&) returns std::variant<Response, Refusal>.
template <typename Wire, typename Ask>
grpc::ServerUnaryReactor* AnswerNow(grpc::CallbackServerContext* context,
                                    const grpc::ByteBuffer* bytes, grpc::ByteBuffer* response,
                                    const Ask& ask) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  Wire wire;
  if (const absl::Status parsed = ParseWire(*bytes, &wire); !parsed.ok()) {
    reactor->Finish(ToGrpcStatus({parsed, "INVALID"}));
    return reactor;
  }
  const auto answer = ask(wire);
  if (const auto* refusal = std::get_if<Refusal>(&answer)) {
    reactor->Finish(ToGrpcStatus(*refusal));
  } else {
    *response = ToWire(std::get<0>(answer));
    reactor->Finish(grpc::Status::OK);
  }
  return reactor;
}

}  // namespace hydrant

#endif  // HYDRANT_SERVER_WIRE_UNARY_ANSWER_H_
