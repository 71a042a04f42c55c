// hydrant-eval: measures the cost of cache policies on the user's model and texts. Progress goes to
// stderr, the tables to stdout. Exit codes: 0 done, 1 failed, 2 wrong usage.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "engine/cache/kv_cache_dtype.h"
#include "engine/model/model_source.h"
#include "engine/run/weight_dtype_names.h"
#include "engine/text/chat/chat_template.h"
#include "engine/text/chat/chat_template_files.h"
#include "fmt/ranges.h"
#include "kernels/standard_streams.h"
#include "tools/eval/anatomy.h"
#include "tools/eval/command_line.h"
#include "tools/eval/dialogue.h"
#include "tools/eval/fit/fit_command.h"
#include "tools/eval/kept_text.h"
#include "tools/eval/laboratory.h"
#include "tools/eval/model_files.h"
#include "tools/eval/pictures.h"
#include "tools/eval/prompt_form.h"
#include "tools/eval/report.h"
#include "tools/eval/results.h"
#include "tools/eval/run_cases.h"
#include "tools/eval/tasks.h"
#include "tools/eval/winners.h"

namespace hydrant::eval {
namespace {

// The model's shape and tokenizer, and the form of questions to it.
struct ModelText {
  ModelConfig config;
  std::unique_ptr<Tokenizer> tokenizer;
  PromptForm form;
};

// The form that --form names.
PromptForm FormOf(const Flags& flags, const ModelSource& source) {
  if (flags.form == "plain") return PromptForm::Plain();
  const auto templates = source.gguf() != nullptr ? ReadChatTemplates(*source.gguf())
                                                  : ReadChatTemplates(source.folder());
  if (absl::IsNotFound(templates.status())) {
    if (flags.form == "auto") return PromptForm::Plain();
    Fail("--form: chat, but the model has no chat template; give plain", kExitUsage);
  }
  if (!templates.ok()) Fail("--form: " + std::string(templates.status().message()));
  const auto chat = MakeChatTemplate(*templates);
  if (!chat.ok()) Fail("--form: " + std::string(chat.status().message()));
  auto form = PromptForm::Chat(**chat);
  if (!form.ok()) Fail("--form: " + std::string(form.status().message()) + "; give plain");
  return *std::move(form);
}

ModelText OpenText(const Flags& flags) {
  ModelFiles files = OpenModelFiles(flags.model_path);
  PromptForm form = FormOf(flags, *files.source);
  return {files.source->config(), std::move(files.tokenizer), std::move(form)};
}

// Called before any work, so that an unsupported model is refused at once; null: not requested.
std::unique_ptr<PlainForward> OpenAnatomy(const Flags& flags) {
  if (!flags.anatomy) return nullptr;
  auto source = OpenModel(flags.model_path, LoadFormat::kAuto);
  if (!source.ok()) Fail(std::string(source.status().message()));
  auto forward = PlainForward::Create(*std::move(source), flags.threads);
  if (!forward.ok()) Fail("--anatomy: " + std::string(forward.status().message()));
  return *std::move(forward);
}

nlohmann::json RunAnatomy(const Flags& flags, const std::vector<std::string>& texts,
                          Laboratory* laboratory, PlainForward* forward) {
  nlohmann::json drawn = nlohmann::json::array();
  if (forward == nullptr) return drawn;
  AnatomyOptions options;
  for (const std::string& policy : flags.policies) options.arms.push_back(ParseArm(policy));
  options.budgets = flags.budgets;
  options.length = flags.task.length;
  options.given = flags.task.given;
  for (size_t i = 0; i < texts.size() && !Interrupted(); ++i) {
    const std::string name = std::filesystem::path(flags.texts[i]).filename();
    options.progress = [&](const std::string& step) {
      if (Interrupted()) Fail("interrupted; the same command goes on where it was");
      PrintErr("anatomy of {}: {}\n", name, step);
    };
    auto text = DrawAnatomy(name, texts[i], options, laboratory, forward);
    if (!text.ok()) Fail(std::string(text.status().message()), kExitUsage);
    drawn.push_back(*std::move(text));
  }
  return drawn;
}

// False if the text was not written completely, for example on a full disk.
bool WriteFile(const std::filesystem::path& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary);
  file << text;
  file.close();
  return file.good();
}

void WriteReports(const Flags& flags, const ModelConfig& config, const Results& results,
                  const nlohmann::json& anatomy, const nlohmann::json& kept_text,
                  const std::string& settings, bool complete) {
  std::vector<Summary> summaries = results.Summarize();
  const std::vector<Summary> by_place = results.SummarizeByPlace();
  summaries.insert(summaries.end(), by_place.begin(), by_place.end());
  const std::vector<Difference> differences = results.Compare(flags.against);
  ReportHead head = {
      .title = "hydrant-eval: " + std::filesystem::path(flags.model).filename().string(),
      .settings = settings,
      .num_layers = config.num_layers,
      .num_kv_heads = config.num_kv_heads,
      .context = flags.task.length,
      .complete = complete};
  for (const Winner& winner : WinnersOf(results)) head.winners.push_back(Sentence(winner));
  const auto write = [&](const char* name, const std::string& text) {
    const std::filesystem::path path = std::filesystem::path(flags.out) / name;
    if (!WriteFile(path, text)) Fail("cannot write " + path.string());
    PrintErr("{}\n", path.string());
  };
  write("results.csv", CsvReport(summaries));
  if (!differences.empty()) write("differences.csv", CsvReport(differences));
  write("report.html", HtmlReport(head, summaries, differences, anatomy, kept_text));
  if (!anatomy.empty()) write("anatomy.json", anatomy.dump());
  PrintOut("{}\n{}{}", fmt::join(head.winners, "\n"), TextReport(summaries),
           TextReport(differences));
}

// Valid arms: those to be measured and those in the results file.
void CheckAgainst(const Flags& flags, const Results& results) {
  std::vector<std::string> arms;
  if (!flags.report_only) arms = flags.policies;
  for (const Summary& summary : results.Summarize()) {
    if (std::find(arms.begin(), arms.end(), summary.arm) == arms.end()) arms.push_back(summary.arm);
  }
  for (const std::string& arm : flags.against) {
    if (std::find(arms.begin(), arms.end(), arm) == arms.end())
      Fail(fmt::format("--against: no arm is named '{}'; there are {}", arm, fmt::join(arms, ", ")),
           kExitUsage);
  }
}

// Tokens of the longest case; of two contexts with an instruction between them; of the anatomy.
int LongestSequence(const Flags& flags, const std::vector<Case>& cases) {
  constexpr int kInstruction = 64;
  int recalled = 0;
  for (const std::string& policy : flags.policies)
    recalled = std::max(recalled, ParseArm(policy).recall_tokens);
  int longest = flags.task.length + flags.task.given;
  for (const Case& asked : cases) {
    const auto context = static_cast<int>(asked.trial.context.size());
    longest = std::max({longest, 2 * context + kInstruction,
                        context + LongestDialogue(asked.trial.dialogues, recalled) + kInstruction});
  }
  return longest;
}

LaboratoryOptions OptionsOf(const Flags& flags, const std::vector<Case>& cases) {
  LaboratoryOptions options;
  options.append = flags.append;
  options.score_predictor = flags.score_predictor;
  options.engine.device = flags.device;
  options.engine.num_threads = flags.threads;
  options.engine.dtype = WeightDTypeOf(flags.dtype);
  options.engine.kv_cache_dtype = KvCacheDTypeOf(flags.kv_cache_dtype);
  options.engine.kv_cache_memory_bytes = static_cast<int64_t>(flags.memory_gb * 1e9);
  options.engine.max_model_len = LongestSequence(flags, cases);
  options.max_arms =
      static_cast<int>(std::min<size_t>(64, flags.policies.size() * flags.budgets.size()));
  return options;
}

const char* HalfName(TaskOptions::Half half) {
  return half == TaskOptions::Half::kBoth    ? "both"
         : half == TaskOptions::Half::kTuned ? "tuned"
                                             : "held-out";
}

// Results of different predictors, or of an engine and a daemon, are not mixed; 0: no predictor.
nlohmann::json SettingsOf(const Flags& flags, uint32_t score_predictor) {
  std::vector<std::string> names;
  for (const std::string& text : flags.texts)
    names.push_back(std::filesystem::path(text).filename());
  nlohmann::json settings = {{"model", std::filesystem::path(flags.model).filename()},
                             {"dtype", flags.dtype},
                             {"kv_cache_dtype", flags.kv_cache_dtype},
                             {"texts", names},
                             {"cases", flags.task.cases},
                             {"length", flags.task.length},
                             {"given", flags.task.given},
                             {"seed", flags.task.seed},
                             {"half", HalfName(flags.task.half)},
                             {"form", flags.form},
                             {"append", flags.append}};
  if (score_predictor != 0) settings["score_predictor"] = score_predictor;
  if (!flags.daemon.address.empty()) settings["over_a_daemon"] = true;
  return settings;
}

void CheckPredictor(const Flags& flags, uint32_t score_predictor) {
  for (const std::string& policy : flags.policies) {
    if (score_predictor != 0 || ParseArm(policy).cache.policy != "learned") continue;
    Fail(fmt::format("--policies: {}: the model has no score predictor; make one with hydrant-eval "
                     "fit, or name it with --score-predictor",
                     policy),
         kExitUsage);
  }
}

std::unique_ptr<Laboratory> OpenLaboratory(const Flags& flags, const std::vector<Case>& cases) {
  auto laboratory = Laboratory::Create(flags.model_path, OptionsOf(flags, cases));
  if (!laboratory.ok()) Fail(std::string(laboratory.status().message()));
  CheckPredictor(flags, (*laboratory)->score_predictor());
  return *std::move(laboratory);
}

std::unique_ptr<TrialRunner> OpenDaemon(const Flags& flags, const std::vector<Case>& cases,
                                        const ModelConfig& config) {
  CheckForDaemon(flags, cases);
  auto daemon = ConnectToDaemon(flags.daemon, config);
  if (!daemon.ok()) Fail("--address: " + std::string(daemon.status().message()));
  return *std::move(daemon);
}

int Run(Flags flags) {
  CheckFlags(flags);
  const std::vector<std::string> texts = ReadTexts(flags.texts);
  flags.model_path = PathOfModel(flags.model);
  const std::unique_ptr<PlainForward> forward = OpenAnatomy(flags);
  const ModelText model = OpenText(flags);
  const std::vector<Case> cases = MakeAllCases(flags, texts, model.form, *model.tokenizer);
  if (!flags.write_cases.empty()) {
    if (!WriteFile(flags.write_cases, CasesAsJson(cases)))
      Fail("--write-cases: cannot write " + flags.write_cases);
    return 0;
  }

  std::unique_ptr<TrialRunner> daemon;
  std::unique_ptr<Laboratory> laboratory;
  if (!flags.daemon.address.empty()) {
    daemon = OpenDaemon(flags, cases, model.config);
  } else {
    laboratory = OpenLaboratory(flags, cases);
  }
  TrialRunner* const runner = daemon != nullptr ? daemon.get() : laboratory.get();
  const nlohmann::json settings =
      SettingsOf(flags, laboratory != nullptr ? laboratory->score_predictor() : 0);
  std::error_code error;
  std::filesystem::create_directories(flags.out, error);
  if (error) Fail(fmt::format("--out: cannot make {}: {}", flags.out, error.message()), kExitUsage);
  auto results = Results::Open(std::filesystem::path(flags.out) / "results.jsonl", settings);
  if (!results.ok()) Fail(std::string(results.status().message()), kExitUsage);
  CheckAgainst(flags, *results);
  KeptText kept_text(std::filesystem::path(flags.out) / "kept_text.json");
  const bool complete =
      flags.report_only || RunCases(flags, cases, *model.tokenizer, runner, &*results, &kept_text);
  const nlohmann::json anatomy = RunAnatomy(flags, texts, laboratory.get(), forward.get());
  WriteReports(flags, model.config, *results, anatomy, kept_text.json(), settings.dump(), complete);
  if (!complete) Fail("interrupted; the same command goes on where it was");
  return 0;
}

int Main(int argc, char** argv) {
  Flags flags;
  FitFlags fit_flags;
  CLI::App app("hydrant-eval: what each cache policy costs on a model and texts of yours");
  AddFlags(&app, &flags);
  CLI::App* fit = app.add_subcommand(
      "fit", "Fit the model's score predictor, which policies learned and auto use");
  AddFitFlags(fit, &fit_flags);
  CLI11_PARSE(app, argc, argv);
  if (fit->parsed()) return RunFit(fit_flags);
  if (flags.quick && app.count("--cases") == 0) flags.task.cases = 12;
  if (flags.quick && app.count("--budgets") == 0) flags.budgets = {0.1, 0.2, 0.4};
  if (flags.list_policies || flags.list_tasks) {
    PrintLists(flags);
    return 0;
  }
  return Run(std::move(flags));
}

}  // namespace
}  // namespace hydrant::eval

int main(int argc, char** argv) {
  return hydrant::EndOutput("hydrant-eval", hydrant::eval::Main(argc, argv));
}
