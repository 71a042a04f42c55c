#include "tools/load/targets/openai_target.h"

#include <curl/curl.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <deque>
#include <nlohmann/json.hpp>
#include <thread>
#include <unordered_map>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "engine/model/gguf.h"
#include "engine/model/hub/no_proxy.h"
#include "engine/text/tokenizer/tokenizer.h"
#include "kernels/status_macros.h"
#include "tools/load/targets/http_get.h"
#include "tools/load/targets/sse_parser.h"

namespace hydrant::load {
namespace {

using Clock = std::chrono::steady_clock;
using Json = nlohmann::json;

constexpr EncodeOptions kPlainText = {.add_special_tokens = false, .parse_special_tokens = false};
constexpr size_t kMaxErrorBytes = 4096;  // of a body that is not a stream

// Maps HTTP statuses to gRPC's, so that one table has both.
std::string StatusOf(long code) {
  switch (code) {
    case 200:
      return "OK";
    case 400:
    case 413:
    case 422:
      return "INVALID_ARGUMENT";
    case 401:
      return "UNAUTHENTICATED";
    case 403:
      return "PERMISSION_DENIED";
    case 404:
      return "NOT_FOUND";
    case 429:
      return "RESOURCE_EXHAUSTED";
    case 502:
    case 503:
      return "UNAVAILABLE";
    case 504:
      return "DEADLINE_EXCEEDED";
    default:
      return code >= 500 ? "INTERNAL" : "UNKNOWN";
  }
}

// The server's field may have any type.
int64_t CountIn(const Json& object, const char* name, int64_t otherwise) {
  const auto found = object.find(name);
  return found != object.end() && found->is_number_integer() ? found->get<int64_t>() : otherwise;
}

// The error message of a body: {"error": {"message": ...}}, {"error": ...}, {"detail": ...}, or the
// body itself.
std::string MessageOf(const std::string& body) {
  const Json json = Json::parse(body, nullptr, false);
  if (!json.is_object()) return body;
  for (const char* field : {"error", "detail", "message"}) {
    if (!json.contains(field)) continue;
    const Json& said = json[field];
    if (said.is_string()) return said;
    if (said.is_object() && said.contains("message") && said["message"].is_string())
      return said["message"];
    return said.dump();
  }
  return body;
}

absl::StatusOr<std::unique_ptr<Tokenizer>> ReadTokenizer(const std::string& path) {
  if (!absl::EndsWith(path, ".gguf")) return TokenizerFromPath(path);
  HYDRANT_ASSIGN_OR_RETURN(const std::unique_ptr<GgufFile> file, GgufFile::Open(path));
  return TokenizerFromGguf(*file);
}

// Fields missing in OpenAI's API are vLLM's.
void SetSampling(const Sampling& from, Json* to) {
  const auto set = [to](const char* name, const auto& value) {
    if (value.has_value()) (*to)[name] = *value;
  };
  (*to)["temperature"] = from.temperature;
  set("top_p", from.top_p);
  set("top_k", from.top_k);
  set("min_p", from.min_p);
  set("repetition_penalty", from.repetition_penalty);
  set("presence_penalty", from.presence_penalty);
  set("frequency_penalty", from.frequency_penalty);
}

}  // namespace

struct OpenAiTarget::Impl {
  struct Stream {
    Impl* impl = nullptr;
    int64_t index = 0;
    CURL* easy = nullptr;
    curl_slist* headers = nullptr;
    std::string body;  // request
    SseParser events;
    std::string error_body;
    std::string error;  // in the stream
    double read_delay = 0.0;
    double read_again = 0.0;  // when to resume a paused stream
    bool paused = false;
    int64_t tokens = 0;  // so far
    uint64_t unseen = 0;
    int64_t prompt_tokens = 0;
    int64_t cached_tokens = -1;
    int64_t completion_tokens = 0;
  };

  OpenAiTargetOptions options;
  TargetInfo info;
  std::unique_ptr<Tokenizer> tokenizer;
  CURLM* multi = curl_multi_init();
  std::unordered_map<int64_t, std::unique_ptr<Stream>> streams;
  std::deque<StreamEvent> ready;
  Clock::time_point start = Clock::now();
  size_t next_address = 0;

  ~Impl() {
    while (!streams.empty()) Remove(streams.begin()->second.get());
    curl_multi_cleanup(multi);
  }

  double Now() const { return std::chrono::duration<double>(Clock::now() - start).count(); }

  std::string TextOf(const std::vector<uint32_t>& ids) const {
    return Decode(*tokenizer, {ids.begin(), ids.end()}, /*skip_special=*/false);
  }

  std::string ToWire(const PlannedRequest& request) const {
    Json wire;
    wire["model"] = info.model;
    if (options.prompt_ids) {
      wire["prompt"] = request.prompt;
    } else {
      wire["prompt"] = TextOf(request.prompt);
    }
    wire["max_tokens"] = request.max_tokens;
    SetSampling(options.sampling, &wire);
    if (request.fault == Fault::kMalformed) wire["temperature"] = -1.0;
    wire["seed"] = request.seed & 0x7fffffff;
    wire["stream"] = true;
    wire["stream_options"] = {{"include_usage", true}};
    if (options.ignore_eos) wire["ignore_eos"] = true;
    // A piece of a text may end within a character.
    return wire.dump(-1, ' ', false, Json::error_handler_t::replace);
  }

  void TakeData(Stream* stream, std::string_view data) {
    if (data == "[DONE]") return;
    const Json json = Json::parse(data, nullptr, false);
    if (!json.is_object()) {
      stream->error = "an event that is no JSON object: " + std::string(data.substr(0, 100));
      return;
    }
    if (json.contains("error")) stream->error = MessageOf(std::string(data));
    if (json.contains("usage") && json["usage"].is_object()) {
      const Json& usage = json["usage"];
      stream->prompt_tokens = CountIn(usage, "prompt_tokens", 0);
      stream->completion_tokens = CountIn(usage, "completion_tokens", 0);
      const auto details = usage.find("prompt_tokens_details");
      if (details != usage.end() && details->is_object())
        stream->cached_tokens = CountIn(*details, "cached_tokens", -1);
    }
    if (!json.contains("choices") || !json["choices"].is_array() || json["choices"].empty()) return;
    const Json& choice = json["choices"][0];
    if (!choice.is_object() || !choice.contains("text") || !choice["text"].is_string()) return;
    const std::string text = choice["text"];
    if (text.empty()) return;
    StreamEvent event{.index = stream->index,
                      .at = Now(),
                      .tokens = 1,
                      .bytes = std::exchange(stream->unseen, 0)};
    if (const auto ids = tokenizer->Encode(text, kPlainText); ids.ok())
      event.token_ids.assign(ids->begin(), ids->end());
    ++stream->tokens;
    ready.push_back(std::move(event));
  }

  // libcurl's write callback.
  static size_t OnBytes(const char* bytes, size_t size, size_t count, void* user) {
    auto* stream = static_cast<Stream*>(user);
    return stream->impl->TakeBytes(stream, {bytes, size * count});
  }

  size_t TakeBytes(Stream* stream, std::string_view bytes) {
    if (stream->read_delay > 0.0) {
      if (stream->paused || Now() < stream->read_again) {
        stream->paused = true;
        return CURL_WRITEFUNC_PAUSE;
      }
      stream->read_again = Now() + stream->read_delay;
    }
    stream->unseen += bytes.size();
    long code = 0;
    curl_easy_getinfo(stream->easy, CURLINFO_RESPONSE_CODE, &code);
    if (code == 200) {
      stream->events.Feed(bytes, [&](std::string_view data) { TakeData(stream, data); });
    } else if (stream->error_body.size() < kMaxErrorBytes) {
      stream->error_body += bytes;
    }
    return bytes.size();
  }

  void Remove(Stream* stream) {
    curl_multi_remove_handle(multi, stream->easy);
    curl_easy_cleanup(stream->easy);
    curl_slist_free_all(stream->headers);
    streams.erase(stream->index);
  }

  void End(Stream* stream, std::string status, std::string reason, std::string error) {
    StreamEvent end{.index = stream->index, .at = Now(), .bytes = stream->unseen, .ended = true};
    end.status = std::move(status);
    end.reason = std::move(reason);
    end.error = std::move(error);
    end.prompt_tokens = stream->prompt_tokens;
    end.cached_tokens = stream->cached_tokens;
    end.more_tokens = std::max<int64_t>(0, stream->completion_tokens - stream->tokens);
    ready.push_back(std::move(end));
    Remove(stream);
  }

  void EndAsIs(Stream* stream, CURLcode result) {
    long code = 0;
    curl_easy_getinfo(stream->easy, CURLINFO_RESPONSE_CODE, &code);
    if (result == CURLE_OPERATION_TIMEDOUT)
      return End(stream, "DEADLINE_EXCEEDED", "", curl_easy_strerror(result));
    if (result != CURLE_OK) return End(stream, "UNAVAILABLE", "", curl_easy_strerror(result));
    if (code != 200)
      return End(stream, StatusOf(code), absl::StrCat("HTTP ", code),
                 MessageOf(stream->error_body));
    if (!stream->error.empty()) return End(stream, "INTERNAL", "", stream->error);
    End(stream, "OK", "", "");
  }

  // Runs curl's pending work and collects results.
  void Perform() {
    for (auto& [index, stream] : streams) {
      if (!stream->paused || Now() < stream->read_again) continue;
      stream->paused = false;
      curl_easy_pause(stream->easy, CURLPAUSE_CONT);
    }
    int running = 0;
    curl_multi_perform(multi, &running);
    int left = 0;
    while (const CURLMsg* message = curl_multi_info_read(multi, &left)) {
      if (message->msg != CURLMSG_DONE) continue;
      char* of = nullptr;
      curl_easy_getinfo(message->easy_handle, CURLINFO_PRIVATE, &of);
      EndAsIs(reinterpret_cast<Stream*>(of), message->data.result);
    }
  }

  absl::Status Connect() {
    for (const std::string& address : options.addresses) {
      const auto deadline = Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                               std::chrono::duration<double>(options.wait_seconds));
      absl::StatusOr<std::string> models = HttpGet(address + "/v1/models", options.api_key);
      while (!models.ok() && Clock::now() < deadline) {
        std::this_thread::sleep_for(std::chrono::milliseconds(200));
        models = HttpGet(address + "/v1/models", options.api_key);
      }
      if (!models.ok()) {
        return absl::UnavailableError(absl::StrCat("no server answers at ", address,
                                                   "/v1/models within ", options.wait_seconds,
                                                   " s (", models.status().message(), ")"));
      }
      if (!options.model.empty()) continue;
      const Json json = Json::parse(*models, nullptr, false);
      if (json.is_object() && json.contains("data") && json["data"].is_array() &&
          !json["data"].empty() && json["data"][0].is_object())
        options.model = json["data"][0].value("id", "");
      if (options.model.empty())
        return absl::UnavailableError(
            absl::StrCat(address, "/v1/models names no model; give --model"));
    }
    return absl::OkStatus();
  }
};

OpenAiTarget::OpenAiTarget(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
OpenAiTarget::~OpenAiTarget() = default;

absl::StatusOr<std::unique_ptr<OpenAiTarget>> OpenAiTarget::Create(OpenAiTargetOptions options) {
  curl_global_init(CURL_GLOBAL_DEFAULT);
  auto impl = std::make_unique<Impl>();
  impl->options = std::move(options);
  for (std::string& address : impl->options.addresses) {
    while (!address.empty() && address.back() == '/') address.pop_back();
  }
  if (impl->options.tokenizer.empty()) {
    return absl::InvalidArgumentError(
        "tokenizer: an OpenAI-compatible server does not tell its own; give the model's GGUF "
        "file, tokenizer.json, or the folder that has it");
  }
  absl::StatusOr<std::unique_ptr<Tokenizer>> tokenizer = ReadTokenizer(impl->options.tokenizer);
  if (!tokenizer.ok())
    return absl::InvalidArgumentError(absl::StrCat("tokenizer: ", tokenizer.status().message()));
  impl->tokenizer = *std::move(tokenizer);
  HYDRANT_RETURN_IF_ERROR(impl->Connect());
  impl->info = {.backend = "openai",
                .model = impl->options.model,
                .vocab_size = static_cast<uint32_t>(impl->tokenizer->VocabSize())};
  return std::unique_ptr<OpenAiTarget>(new OpenAiTarget(std::move(impl)));
}

const TargetInfo& OpenAiTarget::info() const { return impl_->info; }

absl::StatusOr<std::vector<uint32_t>> OpenAiTarget::Tokenize(const std::string& text) {
  HYDRANT_ASSIGN_OR_RETURN(const auto ids, impl_->tokenizer->Encode(text, kPlainText));
  return std::vector<uint32_t>(ids.begin(), ids.end());
}

void OpenAiTarget::Start() { impl_->start = Clock::now(); }

double OpenAiTarget::Now() { return impl_->Now(); }

uint64_t OpenAiTarget::Send(const PlannedRequest& request) {
  auto owned = std::make_unique<Impl::Stream>();
  Impl::Stream* stream = owned.get();
  stream->impl = impl_.get();
  stream->index = request.index;
  stream->read_delay = request.read_delay;
  stream->body = impl_->ToWire(request);
  stream->headers = curl_slist_append(nullptr, "Content-Type: application/json");
  if (!impl_->options.api_key.empty())
    stream->headers = curl_slist_append(
        stream->headers, absl::StrCat("Authorization: Bearer ", impl_->options.api_key).c_str());
  const std::string& address =
      impl_->options.addresses[impl_->next_address++ % impl_->options.addresses.size()];
  CURL* easy = stream->easy = curl_easy_init();
  curl_easy_setopt(easy, CURLOPT_URL, absl::StrCat(address, "/v1/completions").c_str());
  curl_easy_setopt(easy, CURLOPT_HTTPHEADER, stream->headers);
  curl_easy_setopt(easy, CURLOPT_POSTFIELDS, stream->body.data());
  curl_easy_setopt(easy, CURLOPT_POSTFIELDSIZE_LARGE, static_cast<curl_off_t>(stream->body.size()));
  curl_easy_setopt(easy, CURLOPT_WRITEFUNCTION, &Impl::OnBytes);
  curl_easy_setopt(easy, CURLOPT_WRITEDATA, stream);
  curl_easy_setopt(easy, CURLOPT_PRIVATE, stream);
  curl_easy_setopt(easy, CURLOPT_NOSIGNAL, 1L);
  UseNoProxyOnThisMachine(easy);
  curl_easy_setopt(easy, CURLOPT_TCP_NODELAY, 1L);
  if (request.deadline > 0.0)
    curl_easy_setopt(easy, CURLOPT_TIMEOUT_MS,
                     std::max(1L, std::lround(request.deadline * 1000.0)));
  curl_multi_add_handle(impl_->multi, easy);
  const uint64_t bytes = stream->body.size();
  impl_->streams.emplace(request.index, std::move(owned));
  return bytes;
}

void OpenAiTarget::Cancel(int64_t index) {
  const auto found = impl_->streams.find(index);
  if (found != impl_->streams.end()) impl_->End(found->second.get(), "CANCELLED", "", "");
}

void OpenAiTarget::Disconnect(int64_t index) {
  const auto found = impl_->streams.find(index);
  if (found != impl_->streams.end()) impl_->End(found->second.get(), "UNAVAILABLE", "", "");
}

bool OpenAiTarget::Wait(double until, StreamEvent* event) {
  // Interval for checking paused streams, in milliseconds.
  constexpr double kMaxMs = 20.0;
  while (true) {
    impl_->Perform();
    if (!impl_->ready.empty()) {
      *event = std::move(impl_->ready.front());
      impl_->ready.pop_front();
      return true;
    }
    const double left = until - Now();
    if (left <= 0.0) return false;
    // Rounded down to whole milliseconds, polling in the last one, to send on time.
    const double ms = std::clamp(std::floor(left * 1000.0), 0.0, kMaxMs);
    curl_multi_poll(impl_->multi, nullptr, 0, static_cast<int>(ms), nullptr);
  }
}

}  // namespace hydrant::load
