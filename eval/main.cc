// hydrant-eval: what each cache policy costs, on a model and texts of the user's. Progress goes to
// stderr, the tables to stdout. Exit codes: 0 done, 1 failed, 2 wrong usage.
#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "absl/strings/str_split.h"
#include "engine/model/model_source.h"
#include "eval/anatomy.h"
#include "eval/laboratory.h"
#include "eval/pictures.h"
#include "eval/report.h"
#include "eval/results.h"
#include "eval/tasks.h"
#include "fmt/ranges.h"

namespace hydrant::eval {
namespace {

using Clock = std::chrono::steady_clock;

constexpr char kOracle[] = "oracle";
constexpr char kNoTask[] = "none";

volatile std::sig_atomic_t interrupted = 0;

struct Flags {
  std::string model;
  std::vector<std::string> texts;
  std::vector<std::string> tasks = {"perplexity", "needle", "needle-unseen"};
  std::vector<std::string> policies = {"h2o",
                                       "h2o:protected_window_size=0",
                                       "ada-h2o",
                                       "local",
                                       "streaming",
                                       "scissorhands",
                                       "tova",
                                       "snapkv",
                                       "ada-snapkv",
                                       "pyramidkv",
                                       "ada-pyramid",
                                       "co2:self_tuning=true",
                                       "subgen-kcenter",
                                       "random",
                                       "reconstruct",
                                       "echo",
                                       "auto",
                                       kOracle,
                                       "oracle:budget_scope=model"};
  std::vector<double> budgets = {0.05, 0.1, 0.2, 0.4, 0.6};
  TaskOptions task;
  std::vector<std::string> against;
  std::string out = "eval-results";
  std::string write_cases;
  std::string device = "cpu";
  std::string dtype = "bfloat16";
  int threads = 2;
  double memory_gb = 1.0;
  bool append = false;
  bool anatomy = false;
  bool report_only = false;
  bool quick = false;
  bool list_policies = false;
  bool list_tasks = false;
};

[[noreturn]] void Fail(const std::string& message, int code = 1) {
  fmt::print(stderr, "hydrant-eval: {}\n", message);
  std::exit(code);
}

void AddFlags(CLI::App* app, Flags* flags) {
  app->add_option("--model", flags->model, "a GGUF file or a Hugging Face folder");
  app->add_option("--text", flags->texts, "a plain UTF-8 text; may be repeated")->take_all();
  app->add_option("--tasks", flags->tasks, "see --list-tasks; none: of --anatomy alone")
      ->delimiter(',')
      ->capture_default_str();
  app->add_option(
         "--policies", flags->policies,
         "name, or name:parameter=value:..; oracle: entries chosen by what the continuation "
         "will attend to")
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
         "--out", flags->out,
         "folder of results.jsonl, results.csv and report.html; a run that was stopped goes on")
      ->capture_default_str();
  app->add_option("--device", flags->device, "cpu or cuda")->capture_default_str();
  app->add_option("--dtype", flags->dtype, "of the weights: bfloat16, float32, stored")
      ->check(CLI::IsMember({"bfloat16", "float32", "stored"}))
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

void ListAll(const Flags& flags) {
  for (const PolicyInfo& info : ListPolicies()) {
    if (!flags.list_policies) break;
    fmt::print("{:16} {}\n", info.name, info.description);
    for (const PolicyParameter& parameter : info.parameters)
      fmt::print("    {} ({}; default {}): {}\n", parameter.name, parameter.range,
                 parameter.default_value, parameter.description);
  }
  if (flags.list_policies)
    fmt::print("{:16} the ceiling: entries chosen by what the continuation will attend to\n",
               kOracle);
  for (const TaskInfo& info : ListTasks()) {
    if (flags.list_tasks) fmt::print("{:16} {}\n", info.name, info.description);
  }
}

// "name:parameter=value:.."
Arm ArmOf(const std::string& text) {
  Arm arm;
  arm.name = text;
  const std::vector<std::string> parts = absl::StrSplit(text, ':');
  arm.is_oracle = parts[0] == kOracle;
  if (!arm.is_oracle) arm.cache.policy = parts[0];
  arm.cache.min_cache_tokens = 0;
  for (size_t i = 1; i < parts.size(); ++i) {
    const std::pair<std::string, std::string> setting =
        absl::StrSplit(parts[i], absl::MaxSplits('=', 1));
    const auto number = [&](auto parse) {
      try {
        return parse(setting.second);
      } catch (const std::exception&) {
        Fail(fmt::format("--policies: '{}' of {} is not a number", parts[i], text), 2);
      }
    };
    const auto whole = [](const std::string& digits) { return std::stoll(digits); };
    const auto real = [](const std::string& digits) { return std::stod(digits); };
    if (setting.first == "protected_window_size") {
      arm.cache.protected_window_size = number(whole);
    } else if (setting.first == "sink_tokens") {
      arm.cache.sink_tokens = number(whole);
    } else if (setting.first == "min_retained_mass") {
      arm.cache.min_retained_mass = number(real);
    } else {
      arm.cache.params[setting.first] = setting.second;
    }
  }
  return arm;
}

// What is wrong is said before any work begins.
void CheckFlags(const Flags& flags) {
  if (flags.model.empty()) Fail("--model: which? A GGUF file or a Hugging Face folder", 2);
  if (flags.texts.empty()) Fail("--text: at least one plain text file is needed", 2);
  if (flags.budgets.empty() || flags.policies.empty() || flags.tasks.empty())
    Fail("--budgets, --policies, --tasks: each needs at least one", 2);
  for (const double budget : flags.budgets) {
    if (!(budget > 0 && budget <= 1))
      Fail(fmt::format("--budgets: {} is outside (0, 1]", budget), 2);
  }
  for (const std::string& policy : flags.policies) {
    Arm arm = ArmOf(policy);
    if (arm.is_oracle) arm.cache.policy = "reconstruct";
    arm.cache.cache_ratio = 0.5;
    if (arm.cache.policy == "full")
      Fail("--policies: full is always there, to be compared with", 2);
    // A budget of any size will do to know names and parameters.
    const auto plan = PlanCache(arm.cache, {flags.task.length, 1, 1});
    if (!plan.ok())
      Fail(fmt::format("--policies: {}: {}", policy, std::string(plan.status().message())), 2);
  }
  for (const std::string& task : flags.tasks) {
    if (task == kNoTask && flags.tasks.size() == 1 && flags.anatomy) continue;
    std::vector<std::string> names;
    for (const TaskInfo& info : ListTasks()) names.push_back(info.name);
    if (std::find(names.begin(), names.end(), task) == names.end())
      Fail(fmt::format("--tasks: '{}' is unknown; one of {}", task, fmt::join(names, ", ")), 2);
  }
}

std::vector<std::string> ReadTexts(const std::vector<std::string>& paths) {
  std::vector<std::string> texts;
  for (const std::string& path : paths) {
    std::ifstream file(path, std::ios::binary);
    if (!file) Fail(fmt::format("--text: cannot read {}", path), 2);
    texts.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
  }
  return texts;
}

class ProgressBar {
 public:
  explicit ProgressBar(size_t all) : all_(all) {}
  void Show(size_t done) {
    const double part = static_cast<double>(done) / static_cast<double>(std::max<size_t>(1, all_));
    const double seconds = std::chrono::duration<double>(Clock::now() - start_).count();
    const double left = part > 0 ? seconds / part * (1 - part) : 0;
    if (isatty(2) == 0) {
      fmt::print(stderr, "{} of {} cases, {:.0f} s left\n", done, all_, left);
    } else {
      fmt::print(stderr, "\r[{:<40}] {} of {} cases, {:.0f} s left ",
                 std::string(static_cast<size_t>(40 * part), '#'), done, all_, left);
    }
    std::fflush(stderr);
  }

 private:
  size_t all_;
  Clock::time_point start_ = Clock::now();
};

Measured MeasuredOf(const Case& asked, const std::string& arm, double budget,
                    const Outcome& outcome) {
  return {.task = asked.task,
          .number = asked.number,
          .arm = arm,
          .budget = budget,
          .nll = outcome.nll,
          .agreement = outcome.agreement,
          .divergence = outcome.divergence,
          .found = Found(asked, outcome.text),
          .text = outcome.text,
          .entries = outcome.entries,
          .retained_mass = outcome.retained_mass,
          .kept = outcome.kept};
}

// All that the case still lacks, read once.
void RunCase(const Flags& flags, const Case& asked, Laboratory* laboratory, Results* results) {
  std::vector<Arm> arms;
  std::vector<double> budgets;
  for (const std::string& policy : flags.policies) {
    for (const double budget : flags.budgets) {
      if (results->Has(asked.task, asked.number, policy, budget)) continue;
      arms.push_back(ArmOf(policy));
      arms.back().cache.cache_ratio = budget;
      budgets.push_back(budget);
    }
  }
  if (arms.empty()) return;
  const std::vector<Outcome> outcomes = laboratory->Run(asked.trial, arms);
  for (size_t i = 0; i < outcomes.size(); ++i) {
    if (!outcomes[i].refused.ok()) continue;
    const absl::Status status = results->Add(MeasuredOf(
        asked, i == 0 ? "full" : arms[i - 1].name, i == 0 ? 1.0 : budgets[i - 1], outcomes[i]));
    if (!status.ok()) Fail(std::string(status.message()));
  }
}

// Before any work, so that a model it does not know is refused at once; null: nobody asked.
std::unique_ptr<PlainForward> OpenAnatomy(const Flags& flags) {
  if (!flags.anatomy) return nullptr;
  auto source = OpenModel(flags.model, LoadFormat::kAuto);
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
  for (const std::string& policy : flags.policies) options.arms.push_back(ArmOf(policy));
  options.budgets = flags.budgets;
  options.length = flags.task.length;
  options.given = flags.task.given;
  for (size_t i = 0; i < texts.size() && interrupted == 0; ++i) {
    const std::string name = std::filesystem::path(flags.texts[i]).filename();
    options.progress = [&](const std::string& step) {
      if (interrupted != 0) Fail("interrupted; the same command goes on where it was");
      fmt::print(stderr, "anatomy of {}: {}\n", name, step);
    };
    auto text = DrawAnatomy(name, texts[i], options, laboratory, forward);
    if (!text.ok()) Fail(std::string(text.status().message()), 2);
    drawn.push_back(*std::move(text));
  }
  return drawn;
}

void WriteReports(const Flags& flags, const Laboratory& laboratory, const Results& results,
                  const nlohmann::json& anatomy, const std::string& settings, bool complete) {
  const std::vector<Summary> summaries = results.Summarize();
  const std::vector<Difference> differences = results.Compare(flags.against);
  const ReportHead head = {
      .title = "hydrant-eval: " + std::filesystem::path(flags.model).filename().string(),
      .settings = settings,
      .num_layers = laboratory.config().num_layers,
      .num_kv_heads = laboratory.config().num_kv_heads,
      .context = flags.task.length,
      .complete = complete};
  const auto write = [&](const char* name, const std::string& text) {
    const std::filesystem::path path = std::filesystem::path(flags.out) / name;
    if (!(std::ofstream(path) << text)) Fail("cannot write " + path.string());
    fmt::print(stderr, "{}\n", path.string());
  };
  write("results.csv", CsvReport(summaries));
  if (!differences.empty()) write("differences.csv", CsvReport(differences));
  write("report.html", HtmlReport(head, summaries, differences, anatomy));
  if (!anatomy.empty()) write("anatomy.json", anatomy.dump());
  fmt::print("{}{}", TextReport(summaries), TextReport(differences));
}

// Arms are those to be measured and those of others that the results hold.
void CheckAgainst(const Flags& flags, const Results& results) {
  std::vector<std::string> arms;
  if (!flags.report_only) arms = flags.policies;
  for (const Summary& summary : results.Summarize()) {
    if (std::find(arms.begin(), arms.end(), summary.arm) == arms.end()) arms.push_back(summary.arm);
  }
  for (const std::string& arm : flags.against) {
    if (std::find(arms.begin(), arms.end(), arm) == arms.end())
      Fail(fmt::format("--against: no arm is named '{}'; there are {}", arm, fmt::join(arms, ", ")),
           2);
  }
}

LaboratoryOptions OptionsOf(const Flags& flags) {
  LaboratoryOptions options;
  options.append = flags.append;
  options.engine.device = flags.device;
  options.engine.num_threads = flags.threads;
  options.engine.dtype = flags.dtype == "float32"  ? WeightDType::kFloat32
                         : flags.dtype == "stored" ? WeightDType::kStored
                                                   : WeightDType::kBFloat16;
  options.engine.kv_cache_dtype = DType::kF32;
  options.engine.kv_cache_memory_bytes = static_cast<int64_t>(flags.memory_gb * 1e9);
  // The context twice with an instruction between, or what is asked behind it.
  options.engine.max_model_len = 2 * flags.task.length + std::max(flags.task.given, 256);
  options.max_arms =
      static_cast<int>(std::min<size_t>(64, flags.policies.size() * flags.budgets.size()));
  return options;
}

nlohmann::json SettingsOf(const Flags& flags) {
  std::vector<std::string> names;
  for (const std::string& text : flags.texts)
    names.push_back(std::filesystem::path(text).filename());
  return {{"model", std::filesystem::path(flags.model).filename()},
          {"dtype", flags.dtype},
          {"texts", names},
          {"cases", flags.task.cases},
          {"length", flags.task.length},
          {"given", flags.task.given},
          {"seed", flags.task.seed},
          {"append", flags.append}};
}

// A case of each task after the other, so that a part of the results is a smaller run of all.
std::vector<Case> CasesOf(const Flags& flags, const std::vector<std::string>& texts,
                          const Laboratory& laboratory) {
  std::vector<Case> cases;
  for (const std::string& task : flags.tasks) {
    if (task == kNoTask) continue;
    auto made = MakeCases(task, flags.task, texts, laboratory);
    if (!made.ok()) Fail(std::string(made.status().message()), 2);
    std::move(made->begin(), made->end(), std::back_inserter(cases));
  }
  std::stable_sort(cases.begin(), cases.end(),
                   [](const Case& a, const Case& b) { return a.number < b.number; });
  return cases;
}

// False: interrupted.
bool RunCases(const Flags& flags, const std::vector<Case>& cases, Laboratory* laboratory,
              Results* results) {
  fmt::print(stderr, "{}\n", laboratory->Description());
  std::signal(SIGINT, [](int) { interrupted = 1; });
  std::signal(SIGTERM, [](int) { interrupted = 1; });
  ProgressBar progress(cases.size());
  size_t done = 0;
  for (const Case& asked : cases) {
    if (interrupted != 0) break;
    RunCase(flags, asked, laboratory, results);
    progress.Show(++done);
  }
  fmt::print(stderr, "\n");
  return done == cases.size();
}

int Run(const Flags& flags) {
  CheckFlags(flags);
  const std::vector<std::string> texts = ReadTexts(flags.texts);
  const std::unique_ptr<PlainForward> forward = OpenAnatomy(flags);
  const auto laboratory = Laboratory::Create(flags.model, OptionsOf(flags));
  if (!laboratory.ok()) Fail(std::string(laboratory.status().message()));
  const std::vector<Case> cases = CasesOf(flags, texts, **laboratory);
  if (!flags.write_cases.empty()) {
    if (!(std::ofstream(flags.write_cases) << CasesAsJson(cases)))
      Fail("--write-cases: cannot write " + flags.write_cases);
    return 0;
  }

  const nlohmann::json settings = SettingsOf(flags);
  std::error_code error;
  std::filesystem::create_directories(flags.out, error);
  if (error) Fail(fmt::format("--out: cannot make {}: {}", flags.out, error.message()), 2);
  auto results = Results::Open(std::filesystem::path(flags.out) / "results.jsonl", settings);
  if (!results.ok()) Fail(std::string(results.status().message()), 2);
  CheckAgainst(flags, *results);
  const bool complete = flags.report_only || RunCases(flags, cases, laboratory->get(), &*results);
  const nlohmann::json anatomy = RunAnatomy(flags, texts, laboratory->get(), forward.get());
  WriteReports(flags, **laboratory, *results, anatomy, settings.dump(), complete);
  if (!complete) Fail("interrupted; the same command goes on where it was");
  return 0;
}

int Main(int argc, char** argv) {
  Flags flags;
  CLI::App app("hydrant-eval: what each cache policy costs on a model and texts of yours");
  AddFlags(&app, &flags);
  CLI11_PARSE(app, argc, argv);
  if (flags.quick && app.count("--cases") == 0) flags.task.cases = 12;
  if (flags.quick && app.count("--budgets") == 0) flags.budgets = {0.1, 0.2, 0.4};
  if (flags.list_policies || flags.list_tasks) {
    ListAll(flags);
    return 0;
  }
  return Run(flags);
}

}  // namespace
}  // namespace hydrant::eval

int main(int argc, char** argv) { return hydrant::eval::Main(argc, argv); }
