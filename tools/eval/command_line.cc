#include "tools/eval/command_line.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "engine/cache/kv_cache_dtype.h"
#include "engine/run/weight_dtype_names.h"
#include "kernels/standard_streams.h"
#include "tools/eval/ideas.h"
#include "tools/eval/model_files.h"

namespace hydrant::eval {
namespace {

constexpr char kOracle[] = "oracle";

const std::map<std::string, TaskOptions::Half> kHalves = {
    {"both", TaskOptions::Half::kBoth},
    {"tuned", TaskOptions::Half::kTuned},
    {"held-out", TaskOptions::Half::kHeldOut}};

volatile std::sig_atomic_t interrupted = 0;

// Flags of arms and tasks.
void AddComparisonFlags(CLI::App* app, Flags* flags) {
  app->add_option("--model", flags->model, "a GGUF file, a Hugging Face folder, or hf:ORG/NAME");
  app->add_option("--text", flags->texts, "a plain UTF-8 text; may be repeated")->take_all();
  app->add_option("--tasks", flags->tasks,
                  "tasks or groups of them, see --list-tasks; none: of --anatomy alone")
      ->delimiter(',')
      ->capture_default_str();
  app->add_option(
         "--policies", flags->policies,
         "name, or name:parameter=value:..; oracle: entries chosen by what the continuation "
         "will attend to; recall_tokens=N: passages that share words with a later question are "
         "read again before it")
      ->delimiter(',')
      ->capture_default_str();
  app->add_option("--budgets", flags->budgets, "shares of the context that stay, (0, 1]")
      ->delimiter(',')
      ->capture_default_str();
  app->add_option("--cases", flags->task.cases, "of each task")
      ->check(CLI::Range(1, 100000))
      ->capture_default_str();
  app->add_option("--length", flags->task.length, "tokens of a context")
      ->check(CLI::Range(64, 1 << 20))
      ->capture_default_str();
  app->add_option("--given", flags->task.given, "tokens after it, of perplexity")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  app->add_option("--seed", flags->task.seed, "of what is hidden")->capture_default_str();
  app->add_option(
         "--half", flags->task.half,
         "both: all cases; tuned: the even ones, for choosing among policies; held-out: the "
         "odd ones, for reporting")
      ->transform(CLI::CheckedTransformer(kHalves))
      ->option_text("TEXT:{both,tuned,held-out} [both]");
  app->add_option("--form", flags->form,
                  "of questions: chat (the model's template), plain, or auto (chat where the model "
                  "has a template)")
      ->check(CLI::IsMember({"auto", "chat", "plain"}))
      ->capture_default_str();
}

// Flags of output files and of the machine.
void AddMachineFlags(CLI::App* app, Flags* flags) {
  app->add_option(
         "--out", flags->out,
         "folder of results.jsonl, results.csv and report.html; a run that was stopped goes on")
      ->capture_default_str();
  app->add_option("--score-predictor", flags->score_predictor,
                  "file of `hydrant-eval fit`, for policy learned; the one beside the model if it "
                  "is there");
  app->add_option("--device", flags->device, "cpu or cuda")->capture_default_str();
  app->add_option("--dtype", flags->dtype, "of the weights, or stored: as in the file")
      ->check(CLI::IsMember(WeightDTypeNames()))
      ->capture_default_str();
  app->add_option("--kv-cache-dtype", flags->kv_cache_dtype, std::string(kKvCacheDTypeHelp))
      ->check(CLI::IsMember(KvCacheDTypeNames()))
      ->capture_default_str();
  app->add_option("--threads", flags->threads, "of the cpu")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  app->add_option("--memory-gb", flags->memory_gb, "of the KV pool: more arms side by side")
      ->check(CLI::Range(0.01, 10000.0))
      ->capture_default_str();
  app->add_flag(
      "--append", flags->append,
      "nothing leaves once a context has been compressed, as in most published comparisons");
}

void AddDaemonFlags(CLI::App* app, DaemonOptions* daemon) {
  app->add_option("--address", daemon->address,
                  "ask a running hydrantd that serves the same model, instead of an engine of its "
                  "own: tasks whose answers are texts");
  app->add_option("--tls-ca", daemon->tls_ca,
                  "PEM file with the daemon's CA: the connection is TLS");
  app->add_option("--tls-certificate", daemon->tls_certificate,
                  "PEM file with a certificate of the client's own");
  app->add_option("--tls-key", daemon->tls_key, "PEM file with its private key");
  app->add_option("--token-file", daemon->token_file,
                  "file with the token that the daemon wants; default: HYDRANT_TOKEN's");
  app->add_option("--wait", daemon->wait_seconds, "seconds until the daemon has to serve")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
}

// Flags of further measurements and of other modes.
void AddModeFlags(CLI::App* app, Flags* flags) {
  app->add_flag("--anatomy", flags->anatomy,
                "the papers' own pictures of each text's middle: attention loss and its bound, "
                "concentration, key clusters, what is needed and held, masks (llama family)");
  app->add_option("--against", flags->against,
                  "arms that every other is compared with, case by case; may be repeated")
      ->delimiter(',');
  app->add_option("--write-cases", flags->write_cases,
                  "write what is asked to this file, a line of JSON a case, and exit: others who "
                  "answer the same append their lines to results.jsonl");
  app->add_flag("--report-only", flags->report_only,
                "measure nothing more: report what results.jsonl holds");
  app->add_flag("--quick", flags->quick,
                "12 cases and 3 budgets, where these are not given: minutes with a small model");
  app->add_flag("--list-policies", flags->list_policies, "names and parameters, and exit");
  app->add_flag("--list-tasks", flags->list_tasks, "names, and exit");
}

// False if the parameter is a number and the value is not.
bool SetParameter(const std::string& name, const std::string& value, CacheSpec* cache) {
  const auto whole = [&](auto& field) { return absl::SimpleAtoi(value, &field.emplace()); };
  if (name == "protected_window_size") return whole(cache->protected_window_size);
  if (name == "sink_tokens") return whole(cache->sink_tokens);
  if (name == "min_retained_mass")
    return absl::SimpleAtod(value, &cache->min_retained_mass.emplace());
  cache->params[name] = value;
  return true;
}

}  // namespace

void AddFlags(CLI::App* app, Flags* flags) {
  AddComparisonFlags(app, flags);
  AddMachineFlags(app, flags);
  AddDaemonFlags(app, &flags->daemon);
  AddModeFlags(app, flags);
}

Arm ParseArm(const std::string& text) {
  Arm arm;
  arm.name = text;
  const std::vector<std::string> parts = absl::StrSplit(text, ':');
  arm.is_oracle = parts[0] == kOracle;
  if (!arm.is_oracle) arm.cache.policy = parts[0];
  if (const IdeaInfo* idea = FindIdea(parts[0]); idea != nullptr) {
    arm.idea = parts[0];
    arm.cache.policy = idea->policy;
  }
  arm.cache.min_cache_tokens = 0;
  for (size_t i = 1; i < parts.size(); ++i) {
    const std::pair<std::string, std::string> setting =
        absl::StrSplit(parts[i], absl::MaxSplits('=', 1));
    const bool is_number = setting.first == "recall_tokens"
                               ? absl::SimpleAtoi(setting.second, &arm.recall_tokens)
                               : SetParameter(setting.first, setting.second, &arm.cache);
    if (!is_number)
      Fail(fmt::format("--policies: '{}' of {} is not a number", parts[i], text), kExitUsage);
  }
  return arm;
}

void CheckFlags(const Flags& flags) {
  if (flags.model.empty())
    Fail("--model: which? A GGUF file, a Hugging Face folder, or hf:ORG/NAME", kExitUsage);
  if (flags.texts.empty()) Fail("--text: at least one plain text file is needed", kExitUsage);
  if (flags.budgets.empty() || flags.policies.empty() || flags.tasks.empty())
    Fail("--budgets, --policies, --tasks: each needs at least one", kExitUsage);
  for (const double budget : flags.budgets) {
    if (!(budget > 0 && budget <= 1))
      Fail(fmt::format("--budgets: {} is outside (0, 1]", budget), kExitUsage);
  }
  for (const std::string& policy : flags.policies) {
    Arm arm = ParseArm(policy);
    if (arm.is_oracle) arm.cache.policy = "reconstruct";
    if (!arm.idea.empty() && flags.device != "cpu")
      Fail(fmt::format("--policies: {} runs on --device cpu alone", policy), kExitUsage);
    if (arm.recall_tokens < 0)
      Fail(fmt::format("--policies: recall_tokens of {} is below 0", policy), kExitUsage);
    arm.cache.cache_ratio = 0.5;
    if (arm.cache.policy == "full")
      Fail("--policies: full is always there, to be compared with", kExitUsage);
    // Any budget is enough to check names and parameters.
    const auto plan = PlanCache(arm.cache, {.tokens = flags.task.length, .predicts_scores = true});
    if (!plan.ok())
      Fail(fmt::format("--policies: {}: {}", policy, std::string(plan.status().message())),
           kExitUsage);
  }
  for (const std::string& task : flags.tasks) {
    if (task == kNoTask && flags.tasks.size() == 1 && flags.anatomy) continue;
    const auto named = TasksNamed(task);
    if (!named.ok()) Fail(std::string(named.status().message()), kExitUsage);
  }
}

void CheckForDaemon(const Flags& flags, const std::vector<Case>& cases) {
  if (flags.anatomy) Fail("--address: does not go with --anatomy", kExitUsage);
  if (flags.append) Fail("--address: does not go with --append", kExitUsage);
  for (const std::string& policy : flags.policies) {
    if (const Arm arm = ParseArm(policy); arm.is_oracle || !arm.idea.empty())
      Fail(fmt::format("--address: a daemon has no {}; name others with --policies", policy),
           kExitUsage);
  }
  for (const Case& asked : cases) {
    for (const Question& question : asked.questions) {
      if (question.judge == Judge::kFound) continue;
      Fail(fmt::format("--address: task {} is judged by likelihoods, which a daemon does not "
                       "report; name others with --tasks",
                       question.task),
           kExitUsage);
    }
  }
}

std::vector<std::string> TasksOf(const Flags& flags) {
  std::vector<std::string> tasks;
  for (const std::string& name : flags.tasks) {
    if (name == kNoTask) continue;
    const std::vector<std::string> named = *TasksNamed(name);
    tasks.insert(tasks.end(), named.begin(), named.end());
  }
  return tasks;
}

void PrintLists(const Flags& flags) {
  for (const PolicyInfo& info : ListPolicies()) {
    if (!flags.list_policies) break;
    PrintOut("{:16} {}\n", info.name, info.description);
    for (const PolicyParameter& parameter : info.parameters)
      PrintOut("    {} ({}; default {}): {}\n", parameter.name, parameter.range,
               parameter.default_value, parameter.description);
  }
  if (flags.list_policies)
    PrintOut("{:16} the ceiling: entries chosen by what the continuation will attend to\n",
             kOracle);
  for (const IdeaInfo& info : ListIdeas()) {
    if (flags.list_policies)
      PrintOut("{:16} not served: {}\n", fmt::format("idea-{}", info.name), info.description);
  }
  for (const TaskInfo& info : ListTasks()) {
    if (flags.list_tasks) PrintOut("{:16} {}\n", info.name, info.description);
  }
}

void CatchInterrupts() {
  std::signal(SIGINT, [](int) { interrupted = 1; });
  std::signal(SIGTERM, [](int) { interrupted = 1; });
}

bool Interrupted() { return interrupted != 0; }

void Fail(std::string_view message, int code) {
  PrintErr("hydrant-eval: {}\n", message);
  std::exit(code);
}

}  // namespace hydrant::eval
