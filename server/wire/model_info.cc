#include "server/wire/model_info.h"

#include "engine/cache/cache_plan.h"
#include "server/wire/status_details.h"

namespace hydrant {

namespace {

v1::Sampling DescribeSampling(const SamplingDefaults& defaults) {
  v1::Sampling info;
  if (defaults.temperature) info.set_temperature(*defaults.temperature);
  if (defaults.top_p) info.set_top_p(*defaults.top_p);
  if (defaults.top_k) info.set_top_k(*defaults.top_k);
  if (defaults.min_p) info.set_min_p(*defaults.min_p);
  if (defaults.repetition_penalty) info.set_repetition_penalty(*defaults.repetition_penalty);
  return info;
}

}  // namespace

v1::GetModelInfoResponse DescribeModel(const ServedModel& model) {
  const ModelConfig& config = model.config;
  v1::GetModelInfoResponse info;
  info.set_name(model.name);
  info.set_architecture(ToValidUtf8(config.architecture));
  info.set_num_layers(config.num_layers);
  info.set_hidden_size(config.hidden_size);
  info.set_num_heads(config.num_heads);
  info.set_num_kv_heads(config.num_kv_heads);
  info.set_head_dim(config.head_dim);
  info.set_vocab_size(config.vocab_size);
  info.set_max_context(config.max_context);
  info.set_max_model_len(model.limits.max_model_len);
  if (model.limits.WindowLayers() > 0) {
    info.set_sliding_window(model.limits.Window());
    info.set_sliding_window_layers(model.limits.WindowLayers());
  }
  if (model.tokenizer->bos_id() >= 0)
    info.set_bos_token_id(static_cast<uint32_t>(model.tokenizer->bos_id()));
  const std::vector<TokenId>& eog = model.tokenizer->eog_ids();
  info.mutable_eog_token_ids()->Assign(eog.begin(), eog.end());
  if (model.chat_template != nullptr)
    info.set_chat_template(std::string(model.chat_template->Names()));
  if (model.sampling != SamplingDefaults())
    *info.mutable_default_sampling() = DescribeSampling(model.sampling);
  return info;
}

v1::PoolInfo DescribePool(const ServedModel& model, const ServingStats& snapshot) {
  v1::PoolInfo info;
  info.set_pages_total(snapshot.pages_total);
  info.set_pages_free(snapshot.pages_free);
  info.set_page_bytes(model.page_bytes);
  info.set_block_size(model.limits.block_size);
  return info;
}

v1::LoadInfo DescribeLoad(const ServingStats& snapshot) {
  v1::LoadInfo info;
  info.set_running(snapshot.running);
  info.set_prefilling(snapshot.prefilling);
  info.set_waiting(snapshot.waiting);
  info.set_queued_tokens(snapshot.queued_tokens);
  info.set_steps(snapshot.steps);
  info.set_preemptions(snapshot.preemptions);
  info.set_prompt_tokens(snapshot.prompt_tokens);
  info.set_generation_tokens(snapshot.generation_tokens);
  info.set_last_step_us(snapshot.last_step_us);
  return info;
}

void DescribePolicies(google::protobuf::RepeatedPtrField<v1::PolicyInfo>* policies) {
  for (const PolicyInfo& policy : ListPolicies()) {
    v1::PolicyInfo* wire = policies->Add();
    wire->set_name(policy.name);
    wire->set_description(policy.description);
    for (const PolicyParameter& parameter : policy.parameters) {
      v1::PolicyParameter* row = wire->add_parameters();
      row->set_name(parameter.name);
      row->set_description(parameter.description);
      row->set_default_value(parameter.default_value);
      row->set_range(parameter.range);
    }
  }
}

}  // namespace hydrant
