#include "cli/evaluation.h"

#include <cstdio>
#include <filesystem>

#include "run/target.h"
#include "util/error.h"
#include "util/file.h"
#include "util/json.h"
#include "util/log.h"

namespace cbench {
namespace {

/// In a tasks directory with one task there is nothing to choose: so it is inside an agent's box.
std::string the_task(const EvaluationArguments& arguments, const std::string& of_target) {
  if (!arguments.task.empty()) return arguments.task;
  if (!of_target.empty()) return of_target;
  const std::vector<std::string> tasks = list_tasks(default_tasks_root());
  if (tasks.size() == 1) return tasks[0];
  throw UsageError("no_task", "which task? give --task NAME (cbench task list shows them)");
}

/// The Checker gives feedback to whoever wrote the package, so it may run where no box can be had;
/// the Verifier never does that by itself.
BoxKind the_box(Mode mode, const std::string& name) {
  if (!name.empty()) return parse_box_kind(name);
  if (mode == Mode::kVerify) return BoxKind::kBwrap;
  try {
    require_box(BoxKind::kBwrap);
    return BoxKind::kBwrap;
  } catch (const EnvironmentError&) {
    spdlog::warn("no box can be started here; checking without one (feedback only)");
    return BoxKind::kDirect;
  }
}

std::string items_jsonl(const std::vector<ItemRecord>& records) {
  std::string out;
  for (const ItemRecord& r : records) {
    out += dump_json({{"benchmark", r.benchmark},
                      {"id", r.id},
                      {"right", r.right},
                      {"extracted", r.extracted},
                      {"reason", r.reason},
                      {"end", r.end},
                      {"answer", r.answer}}) +
           "\n";
  }
  return out;
}

}  // namespace

void EvaluationArguments::declare(CLI::App& command) {
  command.add_option("path", path, "Package directory, saved version (RUN/versions/v3) or run")
      ->required();
  command.add_option("--task", task, "Task name, directory or contract.yaml");
  command.add_option("--box", box, "bwrap, docker or direct (no isolation)");
  command.add_option("--device", device, "cpu or cuda instead of the contract's")
      ->check(CLI::IsMember({"cpu", "cuda"}));
  command.add_option("--junit", junit, "Also write JUnit XML to this file");
  command.add_option("--items", items, "Also write every graded answer to this JSON-lines file");
  command.add_flag("--json", json, "Print the verdict as JSON");
  command.add_flag("-q,--quiet", quiet, "No progress");
}

int run_evaluation(Mode mode, const EvaluationArguments& arguments) {
  const Target target = resolve_target(arguments.path);
  const Contract contract = find_task(the_task(arguments, target.task));
  set_box_image(contract.image);
  EvaluationOptions options;
  options.mode = mode;
  options.package = target.package;
  options.box = the_box(mode, arguments.box);
  options.device = arguments.device;
  options.quiet = arguments.quiet || arguments.json;
  std::vector<ItemRecord> records;
  const Verdict verdict = evaluate(contract, options, &records);
  if (!arguments.junit.empty()) write_file_atomic(arguments.junit, verdict_junit(verdict));
  if (!arguments.items.empty()) write_file_atomic(arguments.items, items_jsonl(records));
  const std::string text = arguments.json ? verdict_json(verdict) : verdict_table(verdict);
  std::fputs(text.c_str(), stdout);
  return static_cast<int>(verdict.exit_code());
}

}  // namespace cbench
