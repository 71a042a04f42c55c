#include "client/batch_command.h"

#include <fmt/format.h>
#include <google/protobuf/util/json_util.h>
#include <grpcpp/grpcpp.h>

#include <chrono>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>
#include <string>

#include "client/rpc_error.h"
#include "kernels/standard_streams.h"

namespace hydrant {
namespace {

using Json = nlohmann::ordered_json;

// With the contract's field names.
Json ToJson(const google::protobuf::Message& message) {
  google::protobuf::util::JsonPrintOptions options;
  options.preserve_proto_field_names = true;
  std::string text;
  (void)google::protobuf::util::MessageToJsonString(message, &text, options);
  return Json::parse(text);
}

// Prints the error of a malformed line.
std::optional<v1::GenerateBatchRequest> ReadLines(const std::string& lines,
                                                  const v1::GenerateRequest& defaults) {
  v1::GenerateBatchRequest batch;
  std::istringstream stream(lines);
  int number = 0;
  for (std::string line; std::getline(stream, line);) {
    ++number;
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    v1::GenerateRequest own;
    const auto parsed = google::protobuf::util::JsonStringToMessage(line, &own);
    if (!parsed.ok()) {
      PrintErr("hydrant: line {}: {}\n", number, std::string(parsed.message()));
      return std::nullopt;
    }
    *batch.add_requests() = defaults;
    batch.mutable_requests(batch.requests_size() - 1)->MergeFrom(own);
  }
  return batch;
}

// The samples of a request, as they arrive.
struct Answer {
  struct Sample {
    std::string text;
    v1::FinishReason reason = v1::FINISH_REASON_UNSPECIFIED;
  };
  std::map<uint32_t, Sample> samples;

  void Add(const v1::GenerateResponse& response) {
    if (response.has_delta()) samples[response.delta().index()].text += response.delta().text();
    if (response.has_finished())
      samples[response.finished().index()].reason = response.finished().reason();
  }
  Json Print() const {
    Json list = Json::array();
    for (const auto& [index, sample] : samples) {
      list.push_back(
          {{"text", sample.text},
           {"finish_reason", sample.reason == v1::FINISH_REASON_LENGTH ? "length" : "stop"}});
    }
    return list;
  }
};

void PrintLine(const Json& line) { PrintOut("{}\n", line.dump()); }

}  // namespace

int RunBatch(Connection* connection, const std::string& lines, const RequestFlags& flags,
             bool quiet) {
  const std::optional<v1::GenerateBatchRequest> batch = ReadLines(lines, MakeRequest(flags));
  if (!batch.has_value()) return ExitCodeOf({grpc::StatusCode::INVALID_ARGUMENT, ""});
  grpc::ClientContext context;
  if (flags.timeout_s > 0) {
    context.set_deadline(std::chrono::system_clock::now() +
                         std::chrono::microseconds(static_cast<int64_t>(flags.timeout_s * 1e6)));
  }
  std::map<uint32_t, Answer> answers;
  int ended = 0, failed = 0;
  uint64_t tokens = 0;
  const auto reader = connection->stub().GenerateBatch(&context, *batch);
  for (v1::GenerateBatchResponse message; reader->Read(&message);) {
    if (OutputFailed()) context.TryCancel();  // the output cannot be written
    const uint32_t index = message.index();
    if (message.has_failure()) {
      ++failed;
      PrintLine({{"index", index}, {"failure", ToJson(message.failure())}});
      continue;
    }
    const v1::GenerateResponse& response = message.response();
    answers[index].Add(response);
    if (!response.has_usage()) continue;
    ++ended;
    tokens += response.usage().completion_tokens();
    PrintLine({{"index", index},
               {"samples", answers[index].Print()},
               {"usage", ToJson(response.usage())}});
    answers.erase(index);
  }
  const grpc::Status status = reader->Finish();
  if (!status.ok() && !OutputFailed())
    PrintErr("hydrant: {}\n", DescribeError(status, connection->address()));
  if (!quiet) PrintErr("[{} answered with {} tokens, {} failed]\n", ended, tokens, failed);
  return status.ok() && failed > 0 ? 1 : ExitCodeOf(status);
}

}  // namespace hydrant
