#include "server/auth/call_rules.h"

#include <algorithm>
#include <array>

namespace hydrant {
namespace {

// Sorted by method.
constexpr std::array kRules = {
    CallRule{"/grpc.channelz.v1.Channelz/GetChannel", Access::kAdmin, Ports::kControlOnly},
    CallRule{"/grpc.channelz.v1.Channelz/GetServer", Access::kAdmin, Ports::kControlOnly},
    CallRule{"/grpc.channelz.v1.Channelz/GetServerSockets", Access::kAdmin, Ports::kControlOnly},
    CallRule{"/grpc.channelz.v1.Channelz/GetServers", Access::kAdmin, Ports::kControlOnly},
    CallRule{"/grpc.channelz.v1.Channelz/GetSocket", Access::kAdmin, Ports::kControlOnly},
    CallRule{"/grpc.channelz.v1.Channelz/GetSubchannel", Access::kAdmin, Ports::kControlOnly},
    CallRule{"/grpc.channelz.v1.Channelz/GetTopChannels", Access::kAdmin, Ports::kControlOnly},
    CallRule{"/grpc.health.v1.Health/Check", Access::kAnyone},
    CallRule{"/grpc.health.v1.Health/Watch", Access::kAnyone},
    // Public, because the contracts are.
    CallRule{"/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", Access::kAnyone,
             Ports::kControl},
    CallRule{"/hydrant.v1.Control/Drain", Access::kAdmin, Ports::kControlOnly},
    CallRule{"/hydrant.v1.Hydrant/CompressContext", Access::kTenant},
    CallRule{"/hydrant.v1.Hydrant/DeleteContext", Access::kTenant},
    CallRule{"/hydrant.v1.Hydrant/Detokenize", Access::kTenant},
    CallRule{"/hydrant.v1.Hydrant/Embed", Access::kTenant},
    CallRule{"/hydrant.v1.Hydrant/Generate", Access::kTenant},
    CallRule{"/hydrant.v1.Hydrant/GenerateBatch", Access::kTenant},
    CallRule{"/hydrant.v1.Hydrant/GetContext", Access::kTenant},
    CallRule{"/hydrant.v1.Hydrant/GetModelInfo", Access::kTenant},
    CallRule{"/hydrant.v1.Hydrant/GetServerInfo", Access::kTenant},
    CallRule{"/hydrant.v1.Hydrant/ListContexts", Access::kTenant},
    CallRule{"/hydrant.v1.Hydrant/LoadContext", Access::kTenant},
    CallRule{"/hydrant.v1.Hydrant/SaveContext", Access::kTenant},
    CallRule{"/hydrant.v1.Hydrant/Tokenize", Access::kTenant},
    CallRule{"/inference.GRPCInferenceService/ModelMetadata", Access::kTenant},
    CallRule{"/inference.GRPCInferenceService/ModelReady", Access::kTenant},
    CallRule{"/inference.GRPCInferenceService/ServerLive", Access::kAnyone},
    CallRule{"/inference.GRPCInferenceService/ServerMetadata", Access::kTenant},
    CallRule{"/inference.GRPCInferenceService/ServerReady", Access::kAnyone},
    CallRule{"/vllm.grpc.engine.VllmEngine/Abort", Access::kTenant},
    CallRule{"/vllm.grpc.engine.VllmEngine/Embed", Access::kTenant},
    CallRule{"/vllm.grpc.engine.VllmEngine/FlushCache", Access::kAdmin, Ports::kControl},
    CallRule{"/vllm.grpc.engine.VllmEngine/Generate", Access::kTenant},
    CallRule{"/vllm.grpc.engine.VllmEngine/GetLoads", Access::kTenant},
    CallRule{"/vllm.grpc.engine.VllmEngine/GetModelInfo", Access::kTenant},
    CallRule{"/vllm.grpc.engine.VllmEngine/GetServerInfo", Access::kTenant},
    CallRule{"/vllm.grpc.engine.VllmEngine/GetTokenizer", Access::kTenant},
    CallRule{"/vllm.grpc.engine.VllmEngine/HealthCheck", Access::kAnyone},
    // Contains tokens of clients' prompts.
    CallRule{"/vllm.grpc.engine.VllmEngine/SubscribeKvEvents", Access::kAdmin, Ports::kControl},
    // Reveals more than the health check: the current load of other clients.
    CallRule{"/xds.service.orca.v3.OpenRcaService/StreamCoreMetrics", Access::kTenant},
};

static_assert(std::ranges::is_sorted(kRules, {}, &CallRule::method));

}  // namespace

std::span<const CallRule> CallRules() { return kRules; }

const CallRule* FindCallRule(std::string_view method) {
  const auto found = std::ranges::lower_bound(kRules, method, {}, &CallRule::method);
  return found != kRules.end() && found->method == method ? &*found : nullptr;
}

}  // namespace hydrant
