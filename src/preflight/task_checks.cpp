// The task: checkpoint, what was fetched, hidden data, reference, and the model through the
// evaluator.
#include <cmath>
#include <filesystem>

#include <sys/stat.h>

#include "eval/blocks.h"
#include "eval/selection.h"
#include "eval/statistics.h"
#include "eval/task_data.h"
#include "fetch/hub.h"
#include "fetch/lock.h"
#include "fetch/task_plan.h"
#include "model/config.h"
#include "package/expert_tensors.h"
#include "package/safetensors.h"
#include "preflight/checks.h"
#include "util/error.h"
#include "util/file.h"
#include "util/json.h"
#include "util/text.h"
#include "util/units.h"

namespace cbench {
namespace {

namespace fs = std::filesystem;

constexpr double kSameModel = 1e-3;

std::string joined(const std::vector<std::string>& list, size_t most = 3) {
  std::string text;
  for (size_t i = 0; i < std::min(most, list.size()); ++i) text += (i == 0 ? "" : "; ") + list[i];
  if (list.size() > most) text += "; and " + std::to_string(list.size() - most) + " more";
  return text;
}

std::string fetch_hint(const Contract& contract) { return "cbench fetch " + contract.name; }
std::string reference_hint(const Contract& contract) { return "cbench reference " + contract.name; }

/// What the contract asks for and lock.json does not hold complete.
std::vector<std::string> missing_items(const FetchPlan& plan, Lock& lock) {
  std::vector<std::string> missing;
  for (const PlanItem& item : plan.items) {
    const LockedItem request = lock_request(item);
    const LockedItem* locked = lock.find(request.key);
    if (locked == nullptr) missing.push_back(item.path + " (" + request.name + ")");
    if (locked != nullptr && !locked->complete) missing.push_back(item.path + " (incomplete)");
  }
  return missing;
}

/// Paths of hidden files that others on this machine may read.
std::vector<std::string> readable_by_others(const Contract& contract) {
  std::vector<std::string> found;
  for (const std::string& part : {contract.data.items, contract.data.documents, std::string("raw"),
                                  contract.data.reference + "/hidden"}) {
    const std::string path = contract.data_path(part);
    struct stat info {};
    if (::stat(path.c_str(), &info) == 0 && (info.st_mode & 077) != 0) found.push_back(path);
  }
  return found;
}

double perplexity_of_check(const std::string& out) {
  const Json verdict = parse_json(out, "cbench check");
  if (!verdict.contains("likelihood") || !verdict["likelihood"].is_object()) return 0;
  return json_number(verdict["likelihood"], "ppl", "cbench check");
}

bool holds(const TensorStore& store, const MatrixShape& matrix) {
  if (store.find(matrix.name) != nullptr) return true;
  if (!matrix.routed) return false;
  const std::vector<std::string> parts = expert_parts(matrix.name);
  for (int64_t expert = 0; expert < matrix.experts; ++expert) {
    for (const std::string& part : parts) {
      if (store.find(expert_tensor(matrix.name, expert, part)) == nullptr) return false;
    }
  }
  return true;
}

}  // namespace

void check_checkpoint(const Contract& contract, CheckLines& lines) {
  const std::string dir = contract.checkpoint_dir();
  const std::string todo =
      contract.model.shipped ? "restore it from the repository" : fetch_hint(contract);
  if (!fs::is_regular_file(dir + "/config.json")) {
    return lines.fail("checkpoint", "no config.json in " + dir, todo);
  }
  const ModelConfig config = parse_model_config(read_config(contract), dir + "/config.json");
  const TensorStore store = TensorStore::open_checkpoint(dir);
  std::vector<std::string> missing;
  for (const MatrixShape& matrix : model_matrices(config)) {
    if (!holds(store, matrix)) missing.push_back(matrix.name);
  }
  if (!fs::is_regular_file(dir + "/tokenizer.json")) missing.push_back("tokenizer.json");
  if (!missing.empty()) return lines.fail("checkpoint", "missing: " + joined(missing), todo);
  lines.ok("checkpoint", std::to_string(config.blocks.size()) + " layers, vocabulary " +
                             std::to_string(config.vocab) + ", in " + dir);
}

void check_fetched(const Contract& contract, const PreflightOptions& options, CheckLines& lines) {
  const FetchPlan plan = plan_for(contract);
  if (plan.items.empty()) return lines.ok("fetched", "nothing to fetch: the task is shipped whole");
  const std::string path = plan.lock.empty() ? plan.root + "/lock.json" : plan.lock;
  if (!fs::exists(path)) {
    return lines.fail("fetched", "nothing yet: no " + path, fetch_hint(contract));
  }
  Lock lock = read_lock(path);
  const std::vector<std::string> missing = missing_items(plan, lock);
  if (!missing.empty()) {
    return lines.fail("fetched",
                      std::to_string(missing.size()) + " items missing: " + joined(missing),
                      fetch_hint(contract));
  }
  const VerifyMode mode = options.full ? VerifyMode::kFull : VerifyMode::kFast;
  const VerifyReport report = verify_lock(path, plan.root, mode);
  const std::string seen = std::to_string(report.files) + " files, " + format_size(report.bytes) +
                           (options.full ? ", all hashed" : ", by size and time");
  if (report.problems.empty()) return lines.ok("fetched", seen);
  lines.fail("fetched", joined(report.problems), fetch_hint(contract) + " repairs them");
}

void check_token(const Contract& contract, CheckLines& lines) {
  if (contract.model.shipped && contract.fetch.empty()) {
    return lines.ok("token", "not needed: nothing is fetched");
  }
  HubOptions hub;
  try {
    hub = hub_options_from(process_environment());
  } catch (const UsageError& error) {
    return lines.fail("token", error.what(),
                      "set HF_TOKEN to the token alone, without line breaks");
  }
  const FetchPlan plan = plan_for(contract);
  Lock lock = read_lock(plan.lock.empty() ? plan.root + "/lock.json" : plan.lock);
  if (missing_items(plan, lock).empty())
    return lines.ok("token", "not needed: everything is fetched");
  if (hub.token.empty()) {
    return lines.warn("token", "none", "gated models need one: export HF_TOKEN=hf_...");
  }
  if (!hub.token.starts_with("hf_")) {
    return lines.warn("token", "there is one, but it does not begin with hf_", "check HF_TOKEN");
  }
  lines.ok("token", "present");
}

void check_selection(const Contract& contract, CheckLines& lines) {
  if (needs_selection(contract)) {
    return lines.fail("selection", "items, shots or documents are missing",
                      reference_hint(contract));
  }
  const std::string documents = contract.data_path(contract.data.documents);
  const int64_t window =
      contract.likelihood.context_tokens + contract.likelihood.continuation_tokens;
  const std::string proof = contract.data_path(contract.data.reference) + "/disjoint.json";
  if (!contract.model.shipped && !fs::exists(proof)) {
    return lines.fail("selection", "no " + proof, reference_hint(contract) + " --select");
  }
  if (fs::exists(proof)) {
    const Json json = read_json(proof);
    const Json hashes = selection_hashes(contract);
    if (json_member(json, "sha256", proof) != hashes) {
      return lines.fail("selection", "items, shots or documents changed since they were chosen",
                        reference_hint(contract) + " --select");
    }
    const Overlap overlap =
        document_overlap(documents + "/search.jsonl", documents + "/verification.jsonl", window);
    if (overlap.ids != 0 || overlap.ngrams != 0) {
      return lines.fail("selection",
                        "search and verification documents share " + std::to_string(overlap.ids) +
                            " ids and " + std::to_string(overlap.ngrams) + " runs of 13 words",
                        reference_hint(contract) + " --select");
    }
  }
  const std::vector<std::string> open = readable_by_others(contract);
  if (!contract.model.shipped && !open.empty()) {
    return lines.fail("selection", "others may read " + joined(open), "chmod -R go= them");
  }
  lines.ok("selection", contract.model.shipped ? "shipped" : "private, disjoint, as chosen");
}

void check_reference(const Contract& contract, CheckLines& lines) {
  const int64_t vocab = parse_model_config(read_config(contract), "config.json").vocab;
  double ppl[2] = {};
  for (const Mode mode : {Mode::kCheck, Mode::kVerify}) {
    try {
      if (!fs::exists(blocks_path(contract, mode))) {
        return lines.fail("reference", "no " + blocks_path(contract, mode),
                          reference_hint(contract));
      }
      const Blocks blocks = read_blocks(blocks_path(contract, mode), vocab);
      const ReferenceFigures figures = read_reference(contract, mode, blocks);
      ppl[mode == Mode::kVerify] = perplexity(figures.blocks);
      if (static_cast<int64_t>(blocks.ids.size()) != contract.likelihood.blocks ||
          blocks.context != contract.likelihood.context_tokens ||
          blocks.continuation != contract.likelihood.continuation_tokens) {
        return lines.fail("reference", "made with another protocol than the contract's",
                          reference_hint(contract));
      }
    } catch (const Error& error) {
      return lines.fail("reference", error.what(), reference_hint(contract));
    }
  }
  char text[80];
  std::snprintf(text, sizeof text, "PPL %.6f on search, %.6f on verification text", ppl[0], ppl[1]);
  lines.ok("reference", text);
}

void check_model(const Contract& contract, const PreflightOptions& options, CheckLines& lines) {
  ProcessOptions process;
  process.argv = {
      options.program.empty() ? fs::read_symlink("/proc/self/exe").string() : options.program,
      "--tasks",
      contract.tasks_root,
      "check",
      contract.checkpoint_dir(),
      "--task",
      contract.path,
      "--json",
      "--quiet",
      "--box",
      std::string(box_kind_name(options.box))};
  if (!options.device.empty())
    process.argv.insert(process.argv.end(), {"--device", options.device});
  process.inherit_env = true;
  const RunResult result = run_process(process, contract.timeouts.check + 30, 16u << 20);
  const int64_t vocab = parse_model_config(read_config(contract), "config.json").vocab;
  double ppl = 0, expected = 0;
  std::string trouble = result.timed_out ? "cbench check did not end in time" : "";
  try {
    const Blocks blocks = read_blocks(blocks_path(contract, Mode::kCheck), vocab);
    expected = perplexity(read_reference(contract, Mode::kCheck, blocks).blocks);
    if (trouble.empty()) ppl = perplexity_of_check(result.out);
  } catch (const Error& error) {
    trouble = error.what();
  }
  const char* todo = "the evaluator does not work here: run cbench check on the checkpoint by hand";
  if (ppl <= 0) {
    if (trouble.empty()) trouble = "no likelihood was measured";
    const std::string err = printable(result.err, 200);
    return lines.fail("self_check", trouble + (err.empty() ? "" : ": " + err), todo);
  }
  char text[120];
  std::snprintf(text, sizeof text, "BF16 model: PPL %.6f, reference %.6f, in %.0f s", ppl, expected,
                result.seconds);
  if (std::abs(ppl / expected - 1) > kSameModel) {
    return lines.fail("self_check", text,
                      "it must agree within 0.1 %; other weights, or a bad machine");
  }
  lines.ok("self_check", text);
}

}  // namespace cbench
