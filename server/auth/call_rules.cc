#include "server/auth/call_rules.h"

#include <algorithm>
#include <array>

namespace hydrant {
namespace {

// Sorted by method.
constexpr std::array kRules = {
    CallRule{"/grpc.channelz.v1.Channelz/GetChannel", Who::kAdmin, Where::kControlOnly},
    CallRule{"/grpc.channelz.v1.Channelz/GetServer", Who::kAdmin, Where::kControlOnly},
    CallRule{"/grpc.channelz.v1.Channelz/GetServerSockets", Who::kAdmin, Where::kControlOnly},
    CallRule{"/grpc.channelz.v1.Channelz/GetServers", Who::kAdmin, Where::kControlOnly},
    CallRule{"/grpc.channelz.v1.Channelz/GetSocket", Who::kAdmin, Where::kControlOnly},
    CallRule{"/grpc.channelz.v1.Channelz/GetSubchannel", Who::kAdmin, Where::kControlOnly},
    CallRule{"/grpc.channelz.v1.Channelz/GetTopChannels", Who::kAdmin, Where::kControlOnly},
    CallRule{"/grpc.health.v1.Health/Check", Who::kAnybody},
    CallRule{"/grpc.health.v1.Health/Watch", Who::kAnybody},
    // Public, because the contracts are.
    CallRule{"/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", Who::kAnybody,
             Where::kControl},
    CallRule{"/hydrant.v1.Control/Drain", Who::kAdmin, Where::kControlOnly},
    CallRule{"/hydrant.v1.Hydrant/CompressContext", Who::kTenant},
    CallRule{"/hydrant.v1.Hydrant/DeleteContext", Who::kTenant},
    CallRule{"/hydrant.v1.Hydrant/Detokenize", Who::kTenant},
    CallRule{"/hydrant.v1.Hydrant/Embed", Who::kTenant},
    CallRule{"/hydrant.v1.Hydrant/Generate", Who::kTenant},
    CallRule{"/hydrant.v1.Hydrant/GenerateBatch", Who::kTenant},
    CallRule{"/hydrant.v1.Hydrant/GetContext", Who::kTenant},
    CallRule{"/hydrant.v1.Hydrant/GetModelInfo", Who::kTenant},
    CallRule{"/hydrant.v1.Hydrant/GetServerInfo", Who::kTenant},
    CallRule{"/hydrant.v1.Hydrant/ListContexts", Who::kTenant},
    CallRule{"/hydrant.v1.Hydrant/LoadContext", Who::kTenant},
    CallRule{"/hydrant.v1.Hydrant/SaveContext", Who::kTenant},
    CallRule{"/hydrant.v1.Hydrant/Tokenize", Who::kTenant},
    CallRule{"/inference.GRPCInferenceService/ModelMetadata", Who::kTenant},
    CallRule{"/inference.GRPCInferenceService/ModelReady", Who::kTenant},
    CallRule{"/inference.GRPCInferenceService/ServerLive", Who::kAnybody},
    CallRule{"/inference.GRPCInferenceService/ServerMetadata", Who::kTenant},
    CallRule{"/inference.GRPCInferenceService/ServerReady", Who::kAnybody},
    CallRule{"/vllm.grpc.engine.VllmEngine/Abort", Who::kTenant},
    CallRule{"/vllm.grpc.engine.VllmEngine/Embed", Who::kTenant},
    CallRule{"/vllm.grpc.engine.VllmEngine/FlushCache", Who::kAdmin, Where::kControl},
    CallRule{"/vllm.grpc.engine.VllmEngine/Generate", Who::kTenant},
    CallRule{"/vllm.grpc.engine.VllmEngine/GetLoads", Who::kTenant},
    CallRule{"/vllm.grpc.engine.VllmEngine/GetModelInfo", Who::kTenant},
    CallRule{"/vllm.grpc.engine.VllmEngine/GetServerInfo", Who::kTenant},
    CallRule{"/vllm.grpc.engine.VllmEngine/GetTokenizer", Who::kTenant},
    CallRule{"/vllm.grpc.engine.VllmEngine/HealthCheck", Who::kAnybody},
    // Contains tokens of clients' prompts.
    CallRule{"/vllm.grpc.engine.VllmEngine/SubscribeKvEvents", Who::kAdmin, Where::kControl},
    // Reveals more than the health check: the current load of other clients.
    CallRule{"/xds.service.orca.v3.OpenRcaService/StreamCoreMetrics", Who::kTenant},
};

static_assert(std::ranges::is_sorted(kRules, {}, &CallRule::method));

}  // namespace

std::span<const CallRule> CallRules() { return kRules; }

const CallRule* FindCallRule(std::string_view method) {
  const auto found = std::ranges::lower_bound(kRules, method, {}, &CallRule::method);
  return found != kRules.end() && found->method == method ? &*found : nullptr;
}

}  // namespace hydrant
