#include "engine/run/forward/experts.h"

#include <cstddef>

namespace hydrant {

absl::Status ExpertSpace::Allocate(Backend& backend, const ModelConfig& config, DType input_dtype,
                                   int rows) {
  if (!config.experts.has_value()) return absl::OkStatus();
  const Experts& experts = *config.experts;
  const size_t n = rows, num_places = n * experts.per_token;
  absl::Status status;
  const auto allocate = [&](auto& array, size_t count) {
    if (status.ok()) status = array.Allocate(backend, count);
  };
  allocate(logits, n * experts.count);
  allocate(chosen, num_places);
  allocate(weights, num_places);
  allocate(offsets, experts.count + 1);
  allocate(sources, num_places);
  allocate(places, num_places);
  allocate(gate_up, num_places * 2 * experts.intermediate_size);
  allocate(gated, BytesOf(input_dtype, num_places * experts.intermediate_size));
  allocate(out, num_places * config.hidden_size);
  return status;
}

namespace {

void Route(Backend* backend, const Experts& experts, const Linear& router, const ExpertInput& input,
           const ExpertSpace& space) {
  router.Apply(
      backend,
      MatmulArgs{.x = input.x, .x_dtype = input.dtype, .m = input.rows, .y = space.logits.data()});
  backend->RouteExperts({.logits = space.logits.data(),
                         .rows = input.rows,
                         .experts = experts.count,
                         .per_row = experts.per_token,
                         .kind = experts.weights,
                         .chosen = space.chosen.data(),
                         .weights = space.weights.data(),
                         .offsets = space.offsets.data(),
                         .sources = space.sources.data(),
                         .places = space.places.data()});
}

// The experts' product with row sources[place] of the input, or row `place` without sources.
void Multiply(Backend* backend, const Experts& experts, const Linear& linear,
              const ExpertInput& input, const int32_t* sources, int places,
              const ExpertSpace& space, float* y) {
  linear.Apply(backend, ExpertMatmulArgs{.x = input.x,
                                         .x_dtype = input.dtype,
                                         .rows = input.rows,
                                         .sources = sources,
                                         .offsets = space.offsets.data(),
                                         .places = places,
                                         .experts = experts.count,
                                         .y = y});
}

}  // namespace

void AddExperts(Backend* backend, const ModelConfig& config, const ExpertLayer& layer,
                const ExpertInput& input, const ExpertSpace& space, float* hidden) {
  const Experts& experts = *config.experts;
  const int places = input.rows * experts.per_token;
  Route(backend, experts, layer.router, input, space);
  Multiply(backend, experts, layer.gate_up, input, space.sources.data(), places, space,
           space.gate_up.data());
  backend->Activate({.x = space.gate_up.data(),
                     .activation = config.activation,
                     .gated = true,
                     .m = places,
                     .n = experts.intermediate_size,
                     .out = space.gated.data(),
                     .out_dtype = input.dtype});
  Multiply(backend, experts, layer.down, {space.gated.data(), input.dtype, places}, nullptr, places,
           space, space.out.data());
  backend->CombineExperts({.y = space.out.data(),
                           .weights = space.weights.data(),
                           .places = space.places.data(),
                           .rows = input.rows,
                           .per_row = experts.per_token,
                           .n = config.hidden_size,
                           .out = hidden});
}

}  // namespace hydrant
