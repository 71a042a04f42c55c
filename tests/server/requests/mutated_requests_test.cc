// Every method of the server with malformed messages: random ones of the right type, with values
// from the edges of their ranges, and with randomly changed bytes. Each call must end with a
// documented status, and the server must serve the next one.
//
// HYDRANT_MUTATED_REQUESTS: their number (2000). With --gtest_repeat, each run uses other seeds;
// HYDRANT_MUTATED_SEED sets the first seed, to repeat a failed run.
#include <gmock/gmock.h>
#include <google/protobuf/descriptor.h>
#include <google/protobuf/dynamic_message.h>
#include <google/protobuf/message.h>
#include <grpcpp/generic/generic_stub.h>
#include <gtest/gtest.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <map>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "server/apis/control_service.h"
#include "server/auth/call_rules.h"
#include "tests/server/random_model_server.h"
#include "tests/server/test_server.h"

namespace hydrant {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::DescriptorPool;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::MethodDescriptor;
using google::protobuf::Reflection;
using grpc::StatusCode;

// The codes of docs/guide/api.md, and OK. INTERNAL and UNKNOWN are not among them.
const std::set<StatusCode> kOfTheContract = {
    StatusCode::OK,           StatusCode::INVALID_ARGUMENT,   StatusCode::NOT_FOUND,
    StatusCode::CANCELLED,    StatusCode::RESOURCE_EXHAUSTED, StatusCode::FAILED_PRECONDITION,
    StatusCode::OUT_OF_RANGE, StatusCode::ALREADY_EXISTS,     StatusCode::UNAVAILABLE,
    StatusCode::UNIMPLEMENTED};

int64_t Setting(const char* name, int64_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoll(text, nullptr, 10);
}

// Messages from one seed.
class Mutator {
 public:
  explicit Mutator(uint64_t seed) : random_(seed) {}

  std::string BytesOf(const Descriptor& type) {
    const auto message = New(type);
    // Few fields: among many random ones at least one is invalid, and all requests would be
    // refused early.
    Fill(message.get(), OneOf<double>({0.02, 0.05, 0.1, 0.3, 0.8}), 0);
    if (Chance(0.8)) GivePrompt(message.get());
    std::string bytes = message->SerializeAsString();
    if (Chance(0.3)) Damage(&bytes);
    return bytes;
  }

 private:
  static constexpr int kMaxDepth = 4;

  static std::unique_ptr<Message> New(const Descriptor& type) {
    return std::unique_ptr<Message>(
        google::protobuf::MessageFactory::generated_factory()->GetPrototype(&type)->New());
  }
  uint64_t Below(uint64_t bound) { return random_() % bound; }
  bool Chance(double probability) { return std::bernoulli_distribution(probability)(random_); }
  template <typename T>
  T OneOf(const std::vector<T>& values) {
    return values[Below(values.size())];
  }

  void Fill(Message* message, double share, int depth) {
    const Descriptor* type = message->GetDescriptor();
    for (int i = 0; i < type->field_count(); ++i) {
      if (!Chance(share)) continue;
      const FieldDescriptor* field = type->field(i);
      const auto count = field->is_repeated() ? OneOf<int>({1, 1, 2, 3, 17, 300}) : 1;
      for (int k = 0; k < count; ++k) Set(message, field, share, depth);
    }
  }

  void Set(Message* message, const FieldDescriptor* field, double share, int depth) {
    const Reflection& r = *message->GetReflection();
    const auto put = [&](auto set, auto add, auto value) {
      field->is_repeated() ? (r.*add)(message, field, value) : (r.*set)(message, field, value);
    };
    switch (field->cpp_type()) {
      case FieldDescriptor::CPPTYPE_INT32:
        return put(&Reflection::SetInt32, &Reflection::AddInt32, static_cast<int32_t>(Integer()));
      case FieldDescriptor::CPPTYPE_INT64:
        return put(&Reflection::SetInt64, &Reflection::AddInt64, static_cast<int64_t>(Integer()));
      case FieldDescriptor::CPPTYPE_UINT32:
        return put(&Reflection::SetUInt32, &Reflection::AddUInt32,
                   static_cast<uint32_t>(Integer()));
      case FieldDescriptor::CPPTYPE_UINT64:
        return put(&Reflection::SetUInt64, &Reflection::AddUInt64, Integer());
      case FieldDescriptor::CPPTYPE_DOUBLE:
        return put(&Reflection::SetDouble, &Reflection::AddDouble, Real());
      case FieldDescriptor::CPPTYPE_FLOAT:
        return put(&Reflection::SetFloat, &Reflection::AddFloat, static_cast<float>(Real()));
      case FieldDescriptor::CPPTYPE_BOOL:
        return put(&Reflection::SetBool, &Reflection::AddBool, Chance(0.5));
      case FieldDescriptor::CPPTYPE_ENUM:
        return put(&Reflection::SetEnumValue, &Reflection::AddEnumValue,
                   OneOf<int>({0, 1, 2, 3, 4, -1, 77}));
      case FieldDescriptor::CPPTYPE_STRING: {
        const std::string text = Text();
        return field->is_repeated() ? r.AddString(message, field, text)
                                    : r.SetString(message, field, text);
      }
      case FieldDescriptor::CPPTYPE_MESSAGE:
        if (depth == kMaxDepth) return;
        Fill(field->is_repeated() ? r.AddMessage(message, field) : r.MutableMessage(message, field),
             std::max(share, OneOf<double>({0.05, 0.1, 0.4})), depth + 1);
    }
  }

  uint64_t Integer() {
    if (Chance(0.6)) return Below(20);
    return OneOf<uint64_t>({0, 31, 64, 96, 97, 255, 256, 4096, uint64_t{1} << 31,
                            (uint64_t{1} << 31) - 1, (uint64_t{1} << 32) - 1, uint64_t{1} << 32,
                            uint64_t{1} << 63, (uint64_t{1} << 63) - 1, ~uint64_t{0}, random_()});
  }
  double Real() {
    if (Chance(0.6)) return std::uniform_real_distribution(0.0, 1.0)(random_);
    using Limits = std::numeric_limits<double>;
    return OneOf<double>({0, -0.0, 1, 2, -1, 100, 1e-30, 1e30, 1e300, Limits::denorm_min(),
                          Limits::infinity(), -Limits::infinity(), Limits::quiet_NaN()});
  }
  std::string Text() {
    static const std::vector<std::string> known = {"",
                                                   "x",
                                                   "hello",
                                                   "test-model",
                                                   "random",
                                                   "full",
                                                   "h2o",
                                                   "local",
                                                   "snapkv",
                                                   "tova",
                                                   "streaming",
                                                   "subgen",
                                                   "co2",
                                                   "reconstruct",
                                                   "auto",
                                                   "user",
                                                   "system",
                                                   "assistant",
                                                   "{}",
                                                   "[]",
                                                   "{\"a\": 1}",
                                                   "null",
                                                   "[[[[[[[[",
                                                   "(a+)+$",
                                                   "root ::= root",
                                                   "1",
                                                   "0.5",
                                                   "nan",
                                                   "-1",
                                                   "1e999",
                                                   "\xc3\xa9",
                                                   "\xf0\x9f\x98\x80",
                                                   "%s%n",
                                                   std::string("a\nb\0c", 5),
                                                   "../../etc/passwd"};
    if (Chance(0.85)) return OneOf(known);
    return std::string(OneOf<size_t>({1, 63, 64, 65, 127, 129, 257, 5000}),
                       static_cast<char>('a' + Below(26)));
  }

  // A prompt, as in most requests, alone or with other fields.
  void GivePrompt(Message* message) {
    const FieldDescriptor* batch = message->GetDescriptor()->FindFieldByName("requests");
    if (batch != nullptr && batch->is_repeated()) {
      for (uint64_t i = Below(4); i > 0; --i)
        GivePrompt(message->GetReflection()->AddMessage(message, batch));
      return;
    }
    const std::string name = OneOf<std::string>({"text", "text", "token_ids", "tokenized", "chat"});
    const FieldDescriptor* field = message->GetDescriptor()->FindFieldByName(name);
    if (field == nullptr || field->is_repeated()) return;
    if (field->cpp_type() == FieldDescriptor::CPPTYPE_STRING) {
      message->GetReflection()->SetString(message, field, "hello");
    } else {
      Fill(message->GetReflection()->MutableMessage(message, field), 0.7, 1);
    }
  }

  // Damage of the wire format: wrong lengths, tags of other types, invalid UTF-8, truncation.
  void Damage(std::string* bytes) {
    for (uint64_t changes = 1 + Below(4); changes > 0; --changes) {
      const size_t at = bytes->empty() ? 0 : Below(bytes->size());
      switch (Below(5)) {
        case 0:
          if (!bytes->empty()) (*bytes)[at] ^= static_cast<char>(1 << Below(8));
          break;
        case 1:
          bytes->resize(at);
          break;
        case 2:
          bytes->insert(at, 1 + Below(9), static_cast<char>(random_()));
          break;
        case 3:
          bytes->append(bytes->substr(at, 64));
          break;
        default:
          bytes->erase(at, 1 + Below(9));
      }
    }
  }

  std::mt19937_64 random_;
};

// The method's descriptor in the generated pool; null: unknown.
const MethodDescriptor* DescribeMethod(std::string_view path) {
  std::string name(path.substr(1));
  name[name.find('/')] = '.';
  return DescriptorPool::generated_pool()->FindMethodByName(name);
}

// Methods that gRPC implements with generated handlers, which answer INTERNAL for malformed bytes.
bool IsOfGrpc(std::string_view path) { return path.starts_with("/grpc."); }
// Streams that last until their client leaves: all but these.
bool IsEndless(const MethodDescriptor& method) {
  static const std::set<std::string> ending = {"Generate", "GenerateBatch", "GetTokenizer"};
  return method.server_streaming() && !ending.contains(method.name());
}

// Reads to the end, or for an endless stream to its first answer.
grpc::Status Call(grpc::GenericStub* stub, const std::string& path, bool endless,
                  const std::string& bytes) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() +
                       (endless ? std::chrono::milliseconds(100) : std::chrono::seconds(60)));
  grpc::CompletionQueue queue;
  const auto stream = stub->PrepareCall(&context, path, &queue);
  const auto wait = [&queue] {
    void* tag = nullptr;
    bool ok = false;
    return queue.Next(&tag, &ok) && ok;
  };
  stream->StartCall(nullptr);
  wait();
  const grpc::Slice slice(bytes);
  stream->WriteLast(grpc::ByteBuffer(&slice, 1), grpc::WriteOptions(), nullptr);
  wait();
  grpc::ByteBuffer answer;
  do {
    stream->Read(&answer, nullptr);
  } while (wait() && !endless);
  if (endless) context.TryCancel();
  grpc::Status status;
  stream->Finish(&status, nullptr);
  wait();
  return status;
}

// Whether the connection was lost; a server's status has a reason.
bool IsLost(const grpc::Status& status) {
  return status.error_code() == StatusCode::UNAVAILABLE && DetailsOf(status).reason.empty();
}

const auto kLargestMessage = static_cast<size_t>(GrpcServerOptions().max_message_bytes);

// `count` messages, to all methods in turn.
void SendMutated(const std::shared_ptr<grpc::Channel>& channel, int64_t count) {
  static uint64_t run = 0;
  const uint64_t first = static_cast<uint64_t>(
      Setting("HYDRANT_MUTATED_SEED", static_cast<int64_t>(1 + 1'000'000 * run++)));
  grpc::GenericStub stub(channel);
  bool follows_too_large = false;
  std::map<std::string, std::map<int, int>> answers;  // per method: number of answers by status
  for (uint64_t seed = first; seed < first + static_cast<uint64_t>(count); ++seed) {
    const CallRule& rule = CallRules()[seed % CallRules().size()];
    const std::string path(rule.method);
    const MethodDescriptor* method = DescribeMethod(path);
    ASSERT_NE(method, nullptr) << path;
    const std::string bytes = Mutator(seed).BytesOf(*method->input_type());
    const bool endless = IsEndless(*method);
    grpc::Status status = Call(&stub, path, endless, bytes);
    // An oversized message may end its connection (docs/guide/security.md), and fail the next call
    // with it: that call is repeated.
    const bool is_too_large = bytes.size() > kLargestMessage;
    if (std::exchange(follows_too_large, is_too_large) && IsLost(status))
      status = Call(&stub, path, endless, bytes);
    ++answers[path][status.error_code()];
    const bool allowed = kOfTheContract.contains(status.error_code()) ||
                         (endless && status.error_code() == StatusCode::DEADLINE_EXCEEDED) ||
                         (IsOfGrpc(path) && status.error_code() == StatusCode::INTERNAL);
    EXPECT_TRUE(allowed) << path << ", seed " << seed << ": " << status.error_code() << " "
                         << status.error_message() << "\n"
                         << absl::BytesToHexString(bytes.substr(0, 4096));
    EXPECT_TRUE(is_too_large || !IsLost(status))
        << "lost the server: " << path << ", seed " << seed << ", " << bytes.size()
        << " bytes: " << status.error_message();
  }
  std::cout << "seeds from " << first << ", " << count << " requests\n";
  for (const auto& [path, codes] : answers) {
    std::cout << path << ":";
    for (const auto& [code, times] : codes) std::cout << " " << code << " x" << times;
    std::cout << "\n";
  }
  // Refusals alone would make the test meaningless.
  EXPECT_GT(answers["/hydrant.v1.Hydrant/Generate"][StatusCode::OK], 0);
  EXPECT_GT(answers["/hydrant.v1.Hydrant/Generate"][StatusCode::INVALID_ARGUMENT], 0);
}

int64_t NumRequests() { return Setting("HYDRANT_MUTATED_REQUESTS", 2000); }

TEST(MutatedRequests, AnyMessageEndsAndTheServerServesOn) {
  ControlService control([] {}, [] { return v1::DrainProgress(); });
  TestServerOptions options;
  options.limits.max_model_len = 96;  // admitted requests end soon
  options.log_level = spdlog::level::off;
  options.grpc.authorizer.has_control = true;
  options.grpc.authorizer.is_control = true;
  options.grpc.control = &control;
  TestServer server(options);
  SendMutated(server.NewChannel(), NumRequests());
  EXPECT_TRUE(server.WaitUntilEmpty());
  const StreamResult result = RunToEnd(*server.NewStub(), TextRequest("x", 20));
  EXPECT_TRUE(result.status.ok()) << result.status.error_message();
  EXPECT_EQ(result.token_ids.size(), 20u);
}

// The same with an engine that really compresses and keeps caches.
TEST(MutatedRequests, AdmittedRequestsAreComputed) {
  spdlog::set_level(spdlog::level::off);
  ModelConfig config = RandomModelServer::Config(0);
  config.max_context = 96;
  RandomModelServer server(16, MakeRandomModel(config, 3));
  SendMutated(grpc::CreateChannel("127.0.0.1:" + std::to_string(server.server->port()),
                                  grpc::InsecureChannelCredentials()),
              NumRequests());
  EXPECT_TRUE(WaitFor([&] {
    return server.loop->Idle() &&
           server.loop->Stats().pages_free == server.loop->Stats().pages_total;
  }));
  const StreamResult result = RunToEnd(*server.stub, TextRequest("x", 20));
  EXPECT_TRUE(result.status.ok()) << result.status.error_message();
}

}  // namespace
}  // namespace hydrant
