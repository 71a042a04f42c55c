// The fields of a config.json that change nothing in the forward pass of transformers' models:
// settings of training, generation, other tasks and other programs. Names as in transformers'
// configuration classes and in published files.
#include "engine/model/hf_families.h"

namespace hydrant {
namespace {

constexpr IdleField kAny[] = {
    // Provenance and loading.
    {"transformers_version"},
    {"_commit_hash"},
    {"auto_map"},
    {"custom_pipelines"},
    {"name_or_path"},
    {"unsloth_version"},
    {"unsloth_fixed"},
    {"transformers.js_config"},
    {"tokenizer_class"},
    {"use_bfloat16"},
    {"torchscript"},
    {"return_dict"},
    {"output_attentions"},
    {"output_hidden_states"},
    {"_attn_implementation"},
    {"_attn_implementation_autoset"},
    {"attn_implementation"},
    {"gradient_checkpointing"},
    {"chunk_size_feed_forward"},
    {"use_cache"},
    // Text processing: read by the tokenizer and the scheduler.
    {"bos_token_id"},
    {"eos_token_id"},
    {"pad_token_id"},
    {"sep_token_id"},
    {"unk_token_id"},
    {"decoder_start_token_id"},
    {"prefix"},
    {"task_specific_params"},
    {"max_length"},
    {"min_length"},
    {"do_sample"},
    {"early_stopping"},
    {"num_beams"},
    {"num_beam_groups"},
    {"diversity_penalty"},
    {"temperature"},
    {"top_k"},
    {"top_p"},
    {"typical_p"},
    {"repetition_penalty"},
    {"length_penalty"},
    {"no_repeat_ngram_size"},
    {"encoder_no_repeat_ngram_size"},
    {"bad_words_ids"},
    {"num_return_sequences"},
    {"output_scores"},
    {"return_dict_in_generate"},
    {"forced_bos_token_id"},
    {"forced_eos_token_id"},
    {"remove_invalid_values"},
    {"exponential_decay_length_penalty"},
    {"suppress_tokens"},
    {"begin_suppress_tokens"},
    // Training, and tasks other than next-token prediction.
    {"attention_dropout"},
    {"finetuning_task"},
    {"id2label"},
    {"label2id"},
    {"num_labels"},
    {"problem_type"},
    {"tf_legacy_loss"},
    // Other kinds of models: idle if the value says that this is none of them.
    {"is_encoder_decoder", "false"},
    {"is_decoder"},
    {"add_cross_attention", "false"},
    {"tie_encoder_decoder", "false"},
    {"pruned_heads", "{}"},
};

}  // namespace

std::span<const IdleField> IdleHfFields() { return kAny; }

}  // namespace hydrant
