// cbench bench: how fast this machine runs a model, beside what the machine can do at all.
#include "runtime/bench.h"

#include <cstdio>
#include <filesystem>
#include <memory>

#include "cli/commands.h"
#include "eval/evaluator_bench.h"
#include "package/safetensors.h"
#include "runtime/checkpoint_source.h"
#include "runtime/planned_source.h"
#include "runtime/synthetic_source.h"
#include "task/contract.h"
#include "util/error.h"
#include "util/file.h"

namespace cbench {
namespace {

struct Arguments {
  std::string model;
  std::string device = "cpu";
  BenchOptions options;
  size_t layers = 0;  ///< 0 = all
  bool json = false;
  bool evaluator = false;
  std::string box = "bwrap";
  EvaluatorBenchOptions evaluation;
};

std::string config_path_of(const Arguments& args, std::string& path) {
  path = args.model.empty() ? default_tasks_root() + "/models/tiny-hybrid-6m" : args.model;
  return std::filesystem::is_directory(path) ? path + "/config.json" : path;
}

/// The evaluator at work on random weights of the config's shapes.
void bench_evaluation(const Arguments& args) {
  std::string path;
  EvaluatorBenchOptions options = args.evaluation;
  options.config = read_file(config_path_of(args, path));
  if (std::filesystem::is_directory(path)) options.package = path;
  options.device = args.device;
  options.box = parse_box_kind(args.box);
  require_box(options.box);
  const EvaluatorBenchReport report = bench_evaluator(options);
  const std::string text = args.json ? evaluator_bench_json(report) : evaluator_bench_table(report);
  std::printf("%s", text.c_str());
}

std::unique_ptr<Ops> make_ops(const Arguments& args) {
  return args.device == "cuda" ? make_cuda_ops(0) : make_cpu_ops();
}

/// Where the weights of a bench on a GPU go: what does not fit beside the model's caches streams.
std::shared_ptr<WeightMemory> bench_memory(Ops& ops, const ModelConfig& config,
                                           const Arguments& args) {
  if (!ops.is_cuda()) return nullptr;
  const Capacity capacity = bench_capacity(args.options);
  ArenaReport planned;
  {
    const std::unique_ptr<Ops> spare = make_ops(args);
    PlannedSource nothing({});
    const Model model(*spare, config, nothing, capacity);
    planned = spare->arena().report();
  }
  const int64_t logits = capacity.logits_rows * config.vocab * int64_t{sizeof(float)};
  const int64_t budget = block_budget(ops, config, planned, logits);
  return std::make_shared<WeightMemory>(ops, plan_stream(config, sizeof(uint16_t), budget));
}

/// A checkpoint directory with weights, or only a config.json.
void bench(const Arguments& args) {
  std::string path;
  const std::string config_path = config_path_of(args, path);
  const bool directory = std::filesystem::is_directory(path);
  ModelConfig config = parse_model_config(read_file(config_path), config_path);
  const size_t blocks = config.blocks.size();
  if (args.layers > 0 && args.layers < blocks) config.blocks.resize(args.layers);

  const std::unique_ptr<Ops> ops = make_ops(args);
  const auto memory = bench_memory(*ops, config, args);
  std::unique_ptr<Ceilings> ceilings;
#ifdef CBENCH_HAVE_CUDA
  if (args.device == "cuda") ceilings = make_cuda_ceilings(*ops);
#endif
  if (!ceilings) ceilings = make_cpu_ceilings();
  std::unique_ptr<TensorStore> store;
  std::unique_ptr<WeightSource> weights;
  if (directory) {
    store = std::make_unique<TensorStore>(TensorStore::open_checkpoint(path));
    weights = std::make_unique<CheckpointSource>(*ops, *store, memory);
  } else {
    weights = std::make_unique<SyntheticSource>(*ops, memory);
  }
  BenchReport report = bench_model(*ops, config, *weights, *ceilings, args.options);
  report.of_blocks = static_cast<int64_t>(blocks);
  if (args.json) {
    std::printf("%s\n", bench_json(report).c_str());
  } else {
    std::printf("%s", bench_table(report).c_str());
  }
}

}  // namespace

void add_bench(CLI::App& app, int& exit_code) {
  auto args = std::make_shared<Arguments>();
  CLI::App* command = app.add_subcommand("bench", "Measure prefill and decode speed of a model");
  command
      ->add_option("--model", args->model,
                   "Checkpoint directory, or a config.json to run with synthetic weights "
                   "(default: the shipped tiny model)")
      ->type_name("PATH");
  command
      ->add_option("--layers", args->layers,
                   "Run only the model's first N blocks, where all do not fit (default: all)")
      ->check(CLI::Range(1, 1 << 20));
  command->add_option("--tokens", args->options.tokens, "Tokens of a prefill")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  command->add_option("--sequence", args->options.sequence, "Tokens of each packed sequence")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  command->add_option("--decode", args->options.decode, "Tokens to generate")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  command->add_option("--context", args->options.context, "Tokens before the generated ones")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  command->add_option("--repetitions", args->options.repetitions, "Repetitions of each figure")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  command->add_option("--device", args->device, "Where to run")
      ->check(CLI::IsMember({"cpu", "cuda"}))
      ->capture_default_str();
  command->add_flag(
      "--evaluator", args->evaluator,
      "Measure the whole evaluator instead: engine process, scoring, answers, decoding");
  command->add_option("--box", args->box, "With --evaluator: bwrap, docker or direct")
      ->capture_default_str();
  command->add_option("--blocks", args->evaluation.blocks, "With --evaluator: likelihood blocks")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  command->add_option("--block-context", args->evaluation.context, "Tokens of a block not scored")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  command->add_option("--block-scored", args->evaluation.continuation, "Tokens of a block scored")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  command->add_option("--items", args->evaluation.items, "With --evaluator: answers")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  command->add_flag("--json", args->json, "Print the report as JSON (docs/runtime.md)");
  command->callback([args, &exit_code] {
    args->evaluator ? bench_evaluation(*args) : bench(*args);
    exit_code = 0;
  });
}

}  // namespace cbench
