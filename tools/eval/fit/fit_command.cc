#include "tools/eval/fit/fit_command.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <memory>

#include "engine/cache/prompt_scorer.h"
#include "engine/model/model_source.h"
#include "engine/run/model_fingerprint.h"
#include "engine/run/weight_dtype_names.h"
#include "kernels/standard_streams.h"
#include "tools/eval/command_line.h"
#include "tools/eval/fit/pages.h"
#include "tools/eval/model_files.h"

namespace hydrant::eval {
namespace {

// Pages of the pool for kPageCaches caches of a page, with a half more for their state.
int PoolPages(const ModelConfig& config, int page_tokens, int block_size) {
  const int of_head = page_tokens / block_size + 2;
  return kPageCaches * config.num_layers * config.num_kv_heads * of_head * 3 / 2;
}

void CheckModel(const ModelConfig& config, int prefill) {
  bool has_budget = false;
  for (int layer = 0; layer < config.num_layers; ++layer)
    has_budget = has_budget || config.KindOf(layer).window == 0;
  if (!has_budget)
    Fail("--model: every layer has a window, so there is nothing to rank", kExitUsage);
  if (prefill <= config.max_context) return;
  Fail(fmt::format("--page-tokens: a page is read twice, in {} tokens with an instruction; the "
                   "model's context has {}",
                   prefill, config.max_context),
       kExitUsage);
}

EngineOptions OptionsOf(const FitFlags& flags, const ModelConfig& config, int instruction) {
  EngineOptions options;
  options.device = flags.device;
  options.num_threads = flags.threads;
  options.dtype = WeightDTypeOf(flags.dtype);
  options.kv_cache_dtype = DType::kF32;
  options.num_blocks_override = PoolPages(config, flags.fit.page_tokens, options.block_size);
  options.max_num_seqs = kPageCaches;
  options.max_shared_statistics = kMaxColumnStatistics * kPageCaches;
  options.max_model_len = PagePrefill(flags.fit.page_tokens, instruction);
  return options;
}

void PrintCheck(const Fit& fit) {
  PrintOut(
      "Part of the entries with the highest scores that is kept, on pages that were not fitted\n\n"
      "   share   learned    echo\n");
  for (size_t i = 0; i < fit.check.shares.size(); ++i) {
    PrintOut("{:6.0f} % {:7.1f} % {:5.1f} %\n", 100 * fit.check.shares[i],
             100 * fit.check.learned[i], 100 * fit.check.echo[i]);
  }
}

// Prints the time that is left, a line a page.
class PageProgress {
 public:
  explicit PageProgress(int pages) : pages_(pages) {}
  void Show(int done) const {
    const double seconds = std::chrono::duration<double>(Clock::now() - start_).count();
    PrintErr("{} of {} pages, {:.0f} s left\n", done, pages_, seconds / done * (pages_ - done));
  }

 private:
  using Clock = std::chrono::steady_clock;
  const int pages_;
  const Clock::time_point start_ = Clock::now();
};

}  // namespace

void AddFitFlags(CLI::App* app, FitFlags* flags) {
  app->add_option("--model", flags->model, "a GGUF file, a Hugging Face folder, or hf:ORG/NAME")
      ->required();
  app->add_option("--text", flags->texts,
                  "a plain UTF-8 text, of the kind that the model will read; may be repeated")
      ->take_all()
      ->required();
  app->add_option("--pages", flags->fit.pages, "of all texts together")
      ->check(CLI::Range(kPagesACheck, 100000))
      ->capture_default_str();
  app->add_option("--page-tokens", flags->fit.page_tokens, "tokens of a page, which is read twice")
      ->check(CLI::Range(64, 1 << 18))
      ->capture_default_str();
  app->add_option("--max-weight", flags->fit.max_weight,
                  "of the largest attention that an entry receives, beside its total")
      ->check(CLI::Range(0.0, 1e6))
      ->capture_default_str();
  app->add_option("--out", flags->out,
                  "the file; beside the model by default, where hydrantd and hydrant-eval find it");
  app->add_flag("--force", flags->force, "write even a predictor that ranks worse than echo does");
  app->add_option("--device", flags->device, "cpu or cuda")->capture_default_str();
  app->add_option("--dtype", flags->dtype, "of the weights, or stored: as in the file")
      ->check(CLI::IsMember(WeightDTypeNames()))
      ->capture_default_str();
  app->add_option("--threads", flags->threads, "of the cpu")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
}

int RunFit(const FitFlags& flags) {
  const std::string path = PathOfModel(flags.model);
  const std::string out = flags.out.empty() ? ScorePredictorPath(path) : flags.out;
  const ModelFiles files = OpenModelFiles(path);
  const auto pages = CutPages(ReadTexts(flags.texts), flags.fit, *files.tokenizer);
  if (!pages.ok()) Fail(std::string(pages.status().message()), kExitUsage);
  const auto instruction = files.tokenizer->Encode(
      kProbeInstruction, {.add_special_tokens = false, .parse_special_tokens = false});
  const auto fingerprint = ModelFingerprint(*files.source, *files.tokenizer);
  if (!instruction.ok() || !fingerprint.ok()) Fail("--model: its tokens cannot be read");
  const auto words = static_cast<int>(instruction->size());
  CheckModel(files.source->config(), PagePrefill(flags.fit.page_tokens, words));
  const auto engine =
      Engine::Create(files.source, OptionsOf(flags, files.source->config(), words), nullptr);
  if (!engine.ok()) Fail(std::string(engine.status().message()));
  PrintErr("{}\n", (*engine)->Description());

  CatchInterrupts();
  const PageProgress progress(flags.fit.pages);
  FitOptions options = flags.fit;
  options.progress = [&](int done) { progress.Show(done); };
  options.interrupted = [] { return Interrupted(); };
  const auto fit = FitPredictor(*pages, *instruction, options, engine->get());
  if (!fit.ok()) Fail(std::string(fit.status().message()));
  PrintCheck(*fit);
  if (!fit->check.LearnedIsAhead() && !flags.force) {
    Fail(
        "the predictor ranks worse than echo does, which needs no file: nothing is written. More "
        "pages of the texts that the model will read may help; --force writes it nevertheless");
  }
  const absl::Status written = WriteScorePredictor(fit->predictor, HexOf(*fingerprint), out);
  if (!written.ok()) Fail("--out: " + std::string(written.message()));
  PrintErr("{}: hydrantd and hydrant-eval {}\n", out,
           flags.out.empty() ? "find it beside the model" : "take it with --score-predictor");
  return 0;
}

}  // namespace hydrant::eval
