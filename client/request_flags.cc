#include "client/request_flags.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <fstream>
#include <iterator>

#include "absl/strings/ascii.h"

namespace hydrant {
namespace {

std::string CheckParam(const std::string& text) {
  const size_t equals = text.find('=');
  return equals == std::string::npos || equals == 0 ? "must be name=value" : "";
}

void AddSampling(CLI::App* app, RequestFlags* flags) {
  const auto group = "Sampling";
  app->add_option("--temperature", flags->temperature, "0: greedy; default 1")->group(group);
  app->add_option("--top-p", flags->top_p, "(0, 1]; default 1")->group(group);
  app->add_option("--top-k", flags->top_k, "0: all, the default")->group(group);
  app->add_option("--min-p", flags->min_p, "[0, 1]; default 0")->group(group);
  app->add_option(
         "--repetition-penalty", flags->repetition_penalty,
         "[0.001, 10]; default 1; above 1, what was in prompt or answer becomes less likely")
      ->group(group);
  app->add_option("--presence-penalty", flags->presence_penalty,
                  "[-2, 2]; default 0; off the logits of what was in the answer")
      ->group(group);
  app->add_option("--frequency-penalty", flags->frequency_penalty,
                  "[-2, 2]; default 0; the same, for each time that it was there")
      ->group(group);
  app->add_option("--seed", flags->seed, "Makes the answer repeatable")->group(group);
  app->add_option("--bad-word", flags->bad_words,
                  "A text that the answer does not hold; may be repeated")
      ->allow_extra_args(false)
      ->group(group);
}

void AddStopping(CLI::App* app, RequestFlags* flags) {
  const auto group = "Stopping";
  app->add_option("--max-tokens", flags->max_tokens,
                  fmt::format("Ends an answer that is still not at its end; default {}; 0: as long "
                              "as the context allows. Ctrl-C ends it at any time",
                              kDefaultMaxTokens))
      ->group(group);
  app->add_option("--min-tokens", flags->min_tokens, "Default 0")->group(group);
  app->add_option("--stop", flags->stop, "A string that ends the text; may be repeated")
      ->allow_extra_args(false)
      ->group(group);
  app->add_option("--stop-token-id", flags->stop_token_ids,
                  "An id that ends the text; may be repeated")
      ->allow_extra_args(false)
      ->group(group);
  app->add_flag("--include-stop", flags->include_stop, "Print the stop string, too")->group(group);
  app->add_flag("--ignore-eos", flags->ignore_eos, "Go on past the end of the text")->group(group);
  app->add_flag("--keep-special-tokens", flags->keep_special_tokens, "Print special tokens as text")
      ->group(group);
}

// At most one form.
void AddForm(CLI::App* app, RequestFlags* flags) {
  CLI::Option_group* form = app->add_option_group("Form", "What the answer has to be");
  form->add_flag("--json-object", flags->json_object, "A JSON object");
  form->add_option("--json-schema", flags->json_schema_file,
                   "JSON that the schema in this file describes")
      ->check(CLI::ExistingFile);
  form->add_option("--regex", flags->regex, "A text that this matches as a whole");
  form->add_option("--choice", flags->choices, "One of these texts; to be repeated")
      ->allow_extra_args(false);
  form->add_option("--grammar", flags->grammar_file, "A text of the GBNF grammar in this file")
      ->check(CLI::ExistingFile);
  form->require_option(0, 1);
  app->add_option("--max-whitespace", flags->max_whitespace,
                  "Of JSON: most characters of white space in a row (24; 0: none)")
      ->group("Form");
}

std::string ReadWhole(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

void FillForm(const RequestFlags& flags, v1::GenerateRequest* request) {
  if (flags.json_object) request->mutable_structured_output()->set_json_object(true);
  if (flags.json_schema_file)
    request->mutable_structured_output()->set_json_schema(ReadWhole(*flags.json_schema_file));
  if (flags.regex) request->mutable_structured_output()->set_regex(*flags.regex);
  for (const std::string& text : flags.choices)
    request->mutable_structured_output()->mutable_choice()->add_texts(text);
  if (flags.grammar_file)
    request->mutable_structured_output()->set_grammar(ReadWhole(*flags.grammar_file));
  if (flags.max_whitespace)
    request->mutable_structured_output()->set_max_whitespace(*flags.max_whitespace);
}

// A larger --min-tokens raises the default limit.
void FillMaxTokens(const RequestFlags& flags, v1::Stopping* stopping) {
  const uint32_t otherwise = std::max(kDefaultMaxTokens, flags.min_tokens.value_or(0));
  const uint32_t max_tokens = flags.max_tokens.value_or(otherwise);
  if (max_tokens > 0) stopping->set_max_tokens(max_tokens);
}

void FillScheduling(const RequestFlags& flags, v1::GenerateRequest* request) {
  if (!flags.tenant.empty()) request->mutable_scheduling()->set_tenant(flags.tenant);
  v1::OnPressure on_pressure;
  if (v1::OnPressure_Parse("ON_PRESSURE_" + absl::AsciiStrToUpper(flags.on_pressure), &on_pressure))
    request->mutable_scheduling()->set_on_pressure(on_pressure);
  if (flags.priority) request->mutable_scheduling()->set_priority(*flags.priority);
  const auto us = [](double seconds) { return static_cast<uint64_t>(seconds * 1e6); };
  if (flags.target_ttft_s > 0)
    request->mutable_scheduling()->mutable_slo()->set_ttft_us(us(flags.target_ttft_s));
  if (flags.target_tpot_s > 0)
    request->mutable_scheduling()->mutable_slo()->set_tpot_us(us(flags.target_tpot_s));
}

void FillCache(const RequestFlags& flags, v1::Cache* cache) {
  if (flags.policy) cache->set_cache_policy(*flags.policy);
  if (flags.cache_ratio) cache->set_cache_ratio(*flags.cache_ratio);
  if (flags.max_cache_tokens) cache->set_max_cache_tokens(*flags.max_cache_tokens);
  if (flags.min_cache_tokens) cache->set_min_cache_tokens(*flags.min_cache_tokens);
  if (flags.sink_tokens) cache->set_sink_tokens(*flags.sink_tokens);
  if (flags.protected_window_size) cache->set_protected_window_size(*flags.protected_window_size);
  if (flags.min_retained_mass) cache->set_min_retained_mass(*flags.min_retained_mass);
  if (flags.question_tokens) cache->set_question_tokens(*flags.question_tokens);
  if (flags.question_agnostic) cache->set_question_agnostic(true);
  if (flags.no_reuse) cache->set_reuse(v1::REUSE_OFF);
  if (flags.cache_salt) cache->set_cache_salt(*flags.cache_salt);
  for (const std::string& param : flags.params) {
    const size_t equals = param.find('=');
    (*cache->mutable_params())[param.substr(0, equals)] = param.substr(equals + 1);
  }
}

constexpr char kCacheGroup[] = "KV cache";

// Flags for requests that generate.
void AddReuse(CLI::App* app, RequestFlags* flags) {
  const auto group = kCacheGroup;
  app->add_option("--question-tokens", flags->question_tokens,
                  "Last tokens of the prompt, read after the rest has been compressed")
      ->group(group);
  app->add_flag("--question-agnostic", flags->question_agnostic,
                "The same for a chat: its last message")
      ->group(group);
  app->add_option("--context", flags->context,
                  "Go on from a kept cache, by its handle: of a text only what follows is given")
      ->group(group);
  app->add_option(
         "--recall-tokens", flags->recall_tokens,
         "With --context, or in a chat of several turns: read again at most as many tokens "
         "of it, passages that share words with the question, because its cache may have "
         "evicted their entries")
      ->group(group);
  app->add_flag("--keep", flags->keep, "Keep the cache, and say its handle")->group(group);
}

}  // namespace

void AddCacheFlags(CLI::App* app, RequestFlags* flags) {
  const auto group = kCacheGroup;
  app->add_option(
         "--policy", flags->policy,
         "Evicts entries: auto, the one to begin with (a fifth of the entries answers nine "
         "of ten questions about facts), or another of `hydrant info`; default full: nothing")
      ->group(group);
  app->add_option(
         "--cache-ratio", flags->cache_ratio,
         "Share of the prompt's entries a KV head keeps, (0, 1]; default 0.2, with auto what "
         "there is room for, unless --max-cache-tokens is given")
      ->group(group);
  app->add_option("--max-cache-tokens", flags->max_cache_tokens, "Entries a KV head keeps at most")
      ->group(group);
  app->add_option("--min-cache-tokens", flags->min_cache_tokens, "Floor of the ratio; default 128")
      ->group(group);
  app->add_option("--sink-tokens", flags->sink_tokens, "First tokens that are never evicted")
      ->group(group);
  app->add_option("--protected-window", flags->protected_window_size,
                  "Last tokens that are never evicted")
      ->group(group);
  app->add_option("--min-retained-mass", flags->min_retained_mass,
                  "Attention that every head is to retain when the prompt is compressed, (0, 1]")
      ->group(group);
  app->add_flag("--no-reuse", flags->no_reuse,
                "Read the whole prompt, even where another began alike")
      ->group(group);
  app->add_option("--cache-salt", flags->cache_salt,
                  "Share what is read only with requests of the same salt")
      ->group(group);
  app->add_option("--param", flags->params,
                  "name=value, a parameter of the policy; may be repeated")
      ->check(CheckParam)
      ->allow_extra_args(false)
      ->group(group);
}

void AddRequestFlags(CLI::App* app, RequestFlags* flags) {
  app->add_option("--model", flags->model, "Refuse any other model than this");
  app->add_option("--request-id", flags->request_id, "Default: drawn by the server");
  app->add_option("--timeout", flags->timeout_s, "Seconds the whole answer may take")
      ->check(CLI::NonNegativeNumber);
  app->add_option("--priority", flags->priority, "Lower ones go first; default 0");
  app->add_option("--tenant", flags->tenant,
                  "Whose request it is: tenants get shares by their weights");
  app->add_option("--on-pressure", flags->on_pressure,
                  "When others need pages: preempt, the default; evict: the cache may be cut; "
                  "never: nothing is taken, and it waits until all that it may need is there")
      ->check(CLI::IsMember({"preempt", "evict", "never"}));
  app->add_option("--target-ttft", flags->target_ttft_s,
                  "Seconds until the first token: refused where it cannot be so soon")
      ->check(CLI::Range(1e-6, 86400.0));
  app->add_option("--target-tpot", flags->target_tpot_s,
                  "Seconds for each further token: no more run beside it than keeps that")
      ->check(CLI::Range(1e-6, 86400.0));
  app->add_option("--resume", flags->resume,
                  "Times that a stream which was lost on the way is taken up where it ended")
      ->check(CLI::Range(0, 1000))
      ->capture_default_str();
  app->add_option("--truncate-prompt-tokens", flags->truncate_prompt_tokens,
                  "Of a longer prompt, read so many of its last tokens");
  AddSampling(app, flags);
  AddStopping(app, flags);
  AddForm(app, flags);
  AddCacheFlags(app, flags);
  AddReuse(app, flags);
}

v1::GenerateRequest MakeRequest(const RequestFlags& flags) {
  v1::GenerateRequest request;
  if (flags.model) request.set_model(*flags.model);
  if (flags.request_id) request.set_request_id(*flags.request_id);
  v1::Sampling* sampling = request.mutable_sampling();
  if (flags.temperature) sampling->set_temperature(*flags.temperature);
  if (flags.top_p) sampling->set_top_p(*flags.top_p);
  if (flags.top_k) sampling->set_top_k(*flags.top_k);
  if (flags.min_p) sampling->set_min_p(*flags.min_p);
  if (flags.repetition_penalty) sampling->set_repetition_penalty(*flags.repetition_penalty);
  if (flags.presence_penalty) sampling->set_presence_penalty(*flags.presence_penalty);
  if (flags.frequency_penalty) sampling->set_frequency_penalty(*flags.frequency_penalty);
  if (flags.seed) sampling->set_seed(*flags.seed);
  if (flags.num_samples) sampling->set_n(*flags.num_samples);
  for (const std::string& word : flags.bad_words) sampling->add_bad_words(word);
  v1::Stopping* stopping = request.mutable_stopping();
  FillMaxTokens(flags, stopping);
  if (flags.min_tokens) stopping->set_min_tokens(*flags.min_tokens);
  for (const std::string& stop : flags.stop) stopping->add_stop(stop);
  for (const uint32_t id : flags.stop_token_ids) stopping->add_stop_token_ids(id);
  if (flags.include_stop) stopping->set_include_stop_str_in_output(true);
  if (flags.ignore_eos) stopping->set_ignore_eos(true);
  if (flags.keep_special_tokens) request.mutable_output()->set_skip_special_tokens(false);
  if (flags.truncate_prompt_tokens)
    request.set_truncate_prompt_tokens(*flags.truncate_prompt_tokens);
  FillForm(flags, &request);
  if (flags.context) request.set_context(*flags.context);
  if (flags.recall_tokens) request.set_recall_tokens(*flags.recall_tokens);
  if (flags.keep) request.set_keep(true);
  FillScheduling(flags, &request);
  FillCache(flags, request.mutable_cache());
  return request;
}

}  // namespace hydrant
