// A server on a free loopback port over a real engine with a small random model, for tests of the
// cache. Its tokenizer and chat template are ByteTokenizer and LineTemplate.
#ifndef HYDRANT_TESTS_SERVER_RANDOM_MODEL_SERVER_H_
#define HYDRANT_TESTS_SERVER_RANDOM_MODEL_SERVER_H_

#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <string>

#include "engine/run/engine.h"
#include "server/wire/context_conversion.h"
#include "tests/engine/run/random_model.h"
#include "tests/server/test_server.h"

namespace hydrant {

class RandomModelServer {
 public:
  // `full_caches`: the number of full caches of 1,024 tokens in the pool. `window`: of the
  // first layer.
  explicit RandomModelServer(int full_caches, int window = 0, const Tenants* tenants = nullptr)
      : RandomModelServer(full_caches, MakeRandomModel(Config(window), 3), nullptr, false,
                          tenants) {}
  // For a model with at least the tokenizer's vocabulary. `store`: for contexts; null: none.
  RandomModelServer(int full_caches, std::shared_ptr<const ModelSource> source,
                    std::unique_ptr<ContextStore> store = nullptr, bool batch_invariant = false,
                    const Tenants* tenants = nullptr,
                    std::chrono::milliseconds store_timeout = std::chrono::seconds(10)) {
    const ModelConfig config = source->config();
    EngineOptions options;
    options.sampled_vocab = ByteTokenizer::kVocab;
    options.num_threads = 2;
    options.batch_invariant = batch_invariant;
    options.dtype = WeightDType::kFloat32;
    options.max_num_seqs = 160;
    options.num_blocks_override =
        full_caches * 1024 / options.block_size * config.num_layers * config.num_kv_heads;
    options.prefill_arena_tokens = 65536;
    options.context_memory_bytes = 16 << 20;
    if (tenants != nullptr) options.prefix_cache_memory_bytes = 16 << 20;  // to test isolation
    engine = *Engine::Create(std::move(source), options, nullptr);
    loop = *ServingLoop::Start(engine.get(), &tokenizer,
                               {.max_num_batched_tokens = 16384, .watermark = 0.0}, &router);
    ServiceOptions service_options;
    service_options.tenants = tenants;
    service_options.context_store_timeout = store_timeout;
    service = std::make_unique<Service>(service_options, &router);
    model.name = "random";
    model.config = config;
    model.limits = engine->limits();
    model.kv_layout = engine->kv_layout();
    model.page_bytes = static_cast<int64_t>(engine->kv_layout().PageBytes());
    model.tokenizer = &tokenizer;
    model.chat_template = &chat_template;
    server = *GrpcServer::Start({.listen = "127.0.0.1:0", .authorizer = {.tenants = tenants}},
                                service.get());
    contexts = std::make_unique<ContextArchive>(loop.get(), engine->offload_memory(), HomeOf(model),
                                                std::move(store),
                                                ContextArchiveOptions{.patience = store_timeout});
    service->SetReady(&model, loop.get(), contexts.get());
    stub = v1::Hydrant::NewStub(grpc::CreateChannel("127.0.0.1:" + std::to_string(server->port()),
                                                    grpc::InsecureChannelCredentials()));
  }
  ~RandomModelServer() {
    contexts->Stop();
    server->Shutdown(std::chrono::seconds(1));
    loop->Stop();
  }
  v1::GetServerInfoResponse Info() {
    grpc::ClientContext context;
    v1::GetServerInfoResponse info;
    EXPECT_TRUE(stub->GetServerInfo(&context, {}, &info).ok());
    return info;
  }

  uint64_t NumHeads() const {
    return static_cast<uint64_t>(model.config.num_layers) * model.config.num_kv_heads;
  }

  static ModelConfig Config(int window) {
    ModelConfig config = SmallConfig(4, 2);
    config.layer_kinds.resize(config.num_layers);
    config.layer_kinds[0].window = window;
    config.vocab_size = ByteTokenizer::kVocab;
    config.max_context = 2048;
    return config;
  }

  ByteTokenizer tokenizer;
  LineTemplate chat_template;
  std::unique_ptr<Engine> engine;
  EventRouter router;
  std::unique_ptr<ServingLoop> loop;
  std::unique_ptr<ContextArchive> contexts;
  std::unique_ptr<Service> service;
  ServedModel model;
  std::unique_ptr<GrpcServer> server;
  std::unique_ptr<v1::Hydrant::Stub> stub;
};

}  // namespace hydrant

#endif  // HYDRANT_TESTS_SERVER_RANDOM_MODEL_SERVER_H_
