#include "eval/reference.h"

#include <filesystem>
#include <set>

#include "eval/accuracy.h"
#include "eval/evaluate.h"
#include "eval/generation.h"
#include "eval/sampling.h"
#include "eval/selection.h"
#include "eval/task_data.h"
#include "model/config.h"
#include "util/error.h"
#include "util/file.h"
#include "util/hash.h"
#include "util/progress.h"

namespace cbench {
namespace {

class ReferenceMaker {
 public:
  ReferenceMaker(const Contract& contract, const ReferenceOptions& options)
      : contract_(contract),
        options_(options),
        tokenizer_(Tokenizer::load(contract.checkpoint_dir() + "/tokenizer.json")),
        suite_(contract, tokenizer_) {
    const std::string device = options.device.empty() ? contract.hardware.device : options.device;
    EngineOptions engine;
    engine.package = contract.checkpoint_dir();
    engine.config = read_config(contract);
    engine.box = options.box;
    engine.program = options.program;
    engine.device = device;
    const int64_t vocab = parse_model_config(engine.config, "config.json").vocab;
    engine.capacity = capacity_for(contract, device, vocab, suite_.longest(), suite_.items());
    if (streams(contract, device)) {
      // A step takes as long as copying the weights, however many sequences it serves.
      engine.capacity.slots = std::max(engine.capacity.slots, contract.likelihood.blocks);
      engine.capacity.sequences = engine.capacity.slots;
    }
    engine.load_timeout = contract.timeouts.load;
    engine.reply_timeout = contract.timeouts.reply;
    engine_ = std::make_unique<Engine>(engine);
  }

  void run() {
    const Blocks search = blocks_of(Mode::kCheck);
    const Blocks verification = blocks_of(Mode::kVerify);
    require_disjoint(search, verification);
    measure(Mode::kCheck, search);
    measure(Mode::kVerify, verification);
    engine_->close();
  }

 private:
  /// Whether the BF16 weights alone fill the task's device.
  static bool streams(const Contract& contract, const std::string& device) {
    return device == "cuda" && contract.model.parameters * 2 > contract.hardware.gpu_memory;
  }

  Blocks blocks_of(Mode mode) {
    const std::string path = blocks_path(contract_, mode);
    if (options_.keep_blocks && std::filesystem::exists(path))
      return read_blocks(path, engine_->vocab());
    const char* side = mode == Mode::kCheck ? "search" : "verification";
    // Two sides, two seeds: the same document order twice would pair the blocks.
    const uint64_t seed = contract_.likelihood.seed * 2 + (mode == Mode::kCheck ? 0 : 1);
    const std::string documents =
        contract_.data_path(contract_.data.documents) + "/" + side + ".jsonl";
    Blocks blocks = choose_contexts(documents, contract_.likelihood, tokenizer_, seed);
    make_directories(reference_dir(contract_, mode));
    const std::string partial = path + ".partial";
    Progress progress(std::string("sampling ") + side, static_cast<double>(blocks.ids.size()),
                      "blocks", options_.quiet);
    sample_continuations(*engine_, blocks, contract_.likelihood.temperature, seed, partial,
                         [&](double done) { progress.update(done); });
    progress.finish();
    write_blocks(path, blocks);
    std::filesystem::remove(partial);
    return blocks;
  }

  /// No document, and no context, may stand on both sides.
  void require_disjoint(const Blocks& search, const Blocks& verification) const {
    const std::set<std::string> documents(search.documents.begin(), search.documents.end());
    std::set<std::vector<int32_t>> contexts;
    const auto context_of = [](const Blocks& blocks, size_t i) {
      return std::vector<int32_t>(blocks.ids[i].begin(), blocks.ids[i].begin() + blocks.context);
    };
    for (size_t i = 0; i < search.ids.size(); ++i) contexts.insert(context_of(search, i));
    for (size_t i = 0; i < verification.ids.size(); ++i) {
      const bool shared_id =
          i < verification.documents.size() && documents.contains(verification.documents[i]);
      if (shared_id || contexts.contains(context_of(verification, i))) {
        throw UsageError("documents", "search and verification share a document (block " +
                                          std::to_string(i) + "); they must be disjoint");
      }
    }
  }

  void measure(Mode mode, const Blocks& blocks) {
    ReferenceFigures figures;
    figures.device = engine_->device_name();
    figures.blocks_sha256 = sha256_file(blocks_path(contract_, mode));
    figures.blocks = measure_likelihood(*engine_, blocks);
    // The speed of the bus would be no reference for a model that is resident.
    if (!engine_->streams()) figures.tokens_per_second = decode_speed(blocks);
    if (mode == Mode::kVerify) {
      figures.inputs = selection_hashes(contract_);
      figures.prompts_sha256 = suite_.prompts_sha256();
      figures.accuracy =
          suite_.run(*engine_, read_eos_ids(contract_.checkpoint_dir()), options_.box, nullptr);
      for (BenchmarkResult& b : figures.accuracy) {
        b.reference_right = b.right;
        b.reference_total = b.total;
      }
    }
    write_reference(contract_, mode, figures);
  }

  double decode_speed(const Blocks& blocks) {
    const auto prompts = fresh_prompts(blocks, decode_prompts(contract_.decode),
                                       contract_.decode.prompt_tokens, contract_.likelihood.seed);
    return measure_decode_speed(*engine_, contract_.decode, prompts).tokens_per_second;
  }

  const Contract& contract_;
  const ReferenceOptions& options_;
  Tokenizer tokenizer_;
  AccuracySuite suite_;
  std::unique_ptr<Engine> engine_;
};

}  // namespace

void make_reference(const Contract& contract, const ReferenceOptions& options) {
  if (options.select && options.keep_blocks) {
    throw UsageError("usage", "--select chooses new documents, so the blocks cannot be kept");
  }
  if (options.select || needs_selection(contract)) select_data(contract);
  ReferenceMaker(contract, options).run();
  if (!contract.model.shipped) restrict_hidden(contract);
}

}  // namespace cbench
