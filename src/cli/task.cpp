// cbench task: list, show, check, render, diff, new, export, import.
#include <filesystem>
#include <iomanip>
#include <iostream>

#include "cli/commands.h"
#include "task/contract.h"
#include "task/harbor.h"
#include "task/harbor_import.h"
#include "task/scaffold.h"
#include "util/error.h"
#include "util/json.h"
#include "util/units.h"

namespace cbench {
namespace {

namespace fs = std::filesystem;
using Rows = std::vector<std::vector<std::string>>;

void print_table(const Rows& rows) {
  std::vector<size_t> widths;
  for (const auto& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  for (const auto& row : rows) {
    for (size_t i = 0; i + 1 < row.size(); ++i) {
      std::cout << std::left << std::setw(static_cast<int>(widths[i]) + 2) << row[i];
    }
    std::cout << row.back() << "\n";
  }
}

std::string hardware_text(const Contract& contract) {
  if (contract.hardware.device == "cpu") return "cpu";
  return std::to_string(contract.hardware.gpus) + " x " + contract.hardware.gpu;
}

/// Whether the checkpoint and what else the task needs is here.
std::string fetched_text(const Contract& contract) {
  if (contract.model.shipped) return "shipped";
  const fs::path lock = contract.data_path("lock.json");
  return fs::exists(lock) && fs::is_directory(contract.checkpoint_dir()) ? "yes" : "no";
}

void list(bool json, bool names_only) {
  const std::string root = default_tasks_root();
  Rows rows{{"TASK", "MODEL", "LIMIT", "HARDWARE", "BUDGET", "FETCHED"}};
  Json array = Json::array();
  for (const std::string& name : list_tasks(root)) {
    if (names_only) {
      std::cout << name << "\n";
      continue;
    }
    try {
      const Contract contract = find_task(name, root);
      rows.push_back({name, contract.model.name, format_size(contract.limit),
                      hardware_text(contract), format_duration(contract.budget),
                      fetched_text(contract)});
      array.push_back({{"name", name},
                       {"model", contract.model.name},
                       {"limit", contract.limit},
                       {"hardware", hardware_text(contract)},
                       {"budget", contract.budget},
                       {"fetched", fetched_text(contract)},
                       {"sha256", contract.sha256}});
    } catch (const Error& error) {
      rows.push_back({name, "-", "-", "-", "-", "broken: see `cbench task check " + name + "`"});
      array.push_back({{"name", name}, {"error", error.what()}});
    }
  }
  if (json) {
    std::cout << dump_json(array, 2) << "\n";
  } else if (!names_only) {
    print_table(rows);
  }
}

std::string benchmarks_text(const AccuracyProtocol& accuracy) {
  std::string text;
  for (const BenchmarkProtocol& benchmark : accuracy.benchmarks) {
    text += (text.empty() ? "" : "; ") + benchmark.name + " " + std::to_string(benchmark.items) +
            " items, " + std::to_string(benchmark.shots) + " shots, " +
            std::to_string(benchmark.max_tokens) + " tokens";
  }
  return text;
}

void show(const std::string& task, bool json) {
  const Contract c = find_task(task);
  if (json) {
    Json object = parse_json(contract_json(c), c.path);
    object["path"] = c.path;
    object["sha256"] = c.sha256;
    object["checkpoint"] = c.checkpoint_dir();
    object["fetched"] = fetched_text(c);
    std::cout << dump_json(object, 2) << "\n";
    return;
  }
  const auto number = [](int64_t value) { return std::to_string(value); };
  Rows rows{
      {"task", c.name},
      {"title", c.title},
      {"model", c.model.name + " (" + c.model.architecture + ", " + number(c.model.parameters) +
                    " parameters)"},
      {"source", c.model.repository + (c.model.revision.empty() ? "" : "@" + c.model.revision)},
      {"checkpoint", c.checkpoint_dir() + " (fetched: " + fetched_text(c) + ")"},
      {"limit", format_size(c.limit) + " for the package and for what stays resident"},
      {"hardware", hardware_text(c)},
      {"budget", format_duration(c.budget)},
      {"likelihood", number(c.likelihood.blocks) + " blocks of " +
                         number(c.likelihood.context_tokens) + " + " +
                         number(c.likelihood.continuation_tokens) + " tokens"},
      {"accuracy", benchmarks_text(c.accuracy)},
      {"must keep", number(c.accuracy.retain_numerator) + "/" +
                        number(c.accuracy.retain_denominator) + " of the BF16 mean"},
      {"decode", "prompt " + number(c.decode.prompt_tokens) + ", " + number(c.decode.new_tokens) +
                     " tokens, " + number(c.decode.rounds) + " x " +
                     number(c.decode.requests_per_round)},
      {"verification", "at most " + format_duration(c.timeouts.verification)},
      {"fetch", number(static_cast<int64_t>(c.fetch.size())) + " items"},
      {"contract", c.path},
      {"sha256", c.sha256}};
  print_table(rows);
}

/// Validates one task or all; prints every verdict. Returns the exit code.
int check(const std::string& task, bool json) {
  const std::vector<std::string> names =
      task.empty() ? list_tasks(default_tasks_root()) : std::vector<std::string>{task};
  int exit_code = static_cast<int>(Exit::kOk);
  Json array = Json::array();
  for (const std::string& name : names) {
    try {
      const Contract contract = find_task(name);
      if (!json) std::cout << "ok    " << contract.name << "\n";
      array.push_back({{"task", contract.name}, {"ok", true}, {"sha256", contract.sha256}});
    } catch (const Error& error) {
      exit_code = static_cast<int>(Exit::kUsage);
      if (!json) std::cout << "fail  " << name << "\n";
      std::cerr << "cbench: " << error.what() << "\n";
      array.push_back(
          {{"task", name}, {"ok", false}, {"code", error.code()}, {"message", error.what()}});
    }
  }
  if (json) std::cout << dump_json(array, 2) << "\n";
  return exit_code;
}

void diff(const std::string& left, const std::string& right, bool json) {
  const auto differences = diff_contracts(find_task(left), find_task(right));
  Json array = Json::array();
  Rows rows{{"FIELD", left, right}};
  for (const ContractDifference& one : differences) {
    array.push_back({{"key", one.key}, {"left", one.left}, {"right", one.right}});
    rows.push_back(
        {one.key, one.left.empty() ? "-" : one.left, one.right.empty() ? "-" : one.right});
  }
  if (json) {
    std::cout << dump_json(array, 2) << "\n";
  } else if (differences.empty()) {
    std::cout << "no difference\n";
  } else {
    print_table(rows);
  }
}

struct Options {
  std::string task, other, harbor;
  bool json = false, names = false;
  NewTask created;
};
using Shared = std::shared_ptr<Options>;

CLI::App* add_with_task(CLI::App& parent, const char* name, const char* help, const Shared& options,
                        bool required) {
  CLI::App* command = parent.add_subcommand(name, help);
  command->add_option("task", options->task, "Task name, its directory, or a contract.yaml")
      ->required(required)
      ->type_name("TASK");
  command->add_flag("--json", options->json, "Machine-readable output");
  return command;
}

void add_new(CLI::App& parent, const Shared& options) {
  CLI::App* command = parent.add_subcommand("new", "Start a task from a template");
  NewTask& task = options->created;
  task.protocol = "standard-gpu";
  command->add_option("name", task.name, "Directory name of the new task")->required();
  command->add_option("--limit", task.limit, "Storage limit, for example \"10 GiB\"")->required();
  CLI::Option* from = command->add_option("--from", task.from, "Existing task on the same model")
                          ->type_name("TASK");
  command->add_option("--repository", task.repository, "Model repository, owner/name")
      ->excludes(from);
  command->add_option("--architecture", task.architecture, "Model architecture, e.g. qwen3_5")
      ->excludes(from);
  command->add_option("--parameters", task.parameters, "Number of parameters")->excludes(from);
  command->add_option("--template", task.protocol, "Protocol: a file of tasks/shared, no suffix")
      ->excludes(from);
  command->callback([options] {
    const NewTask& made = options->created;
    if (made.from.empty() &&
        (made.repository.empty() || made.architecture.empty() || made.parameters.empty())) {
      throw UsageError("usage",
                       "task new needs --from TASK, or --repository, --architecture and "
                       "--parameters");
    }
    std::cout << create_task(made, default_tasks_root()) << "\n";
  });
}

void add_export(CLI::App& parent, const Shared& options) {
  CLI::App* command = parent.add_subcommand("export", "Write a task as a Harbor task directory");
  command->add_option("task", options->task, "Task")->required()->type_name("TASK");
  command->add_option("--harbor", options->harbor, "New directory")->required()->type_name("DIR");
  command->callback([options] {
    export_harbor(find_task(options->task), options->harbor);
    std::cout << options->harbor << "\n";
  });
}

void add_import(CLI::App& parent, const Shared& options) {
  CLI::App* command = parent.add_subcommand(
      "import", "Print what a Harbor task directory says about itself, as JSON");
  command->add_option("directory", options->harbor, "Harbor task")->required()->type_name("DIR");
  command->callback([options] {
    const HarborMetadata metadata = import_harbor(options->harbor);
    for (const std::string& warning : metadata.warnings) std::cerr << "cbench: " << warning << "\n";
    std::cout << metadata.json;
  });
}

}  // namespace

void add_task(CLI::App& app, int& exit_code) {
  auto options = std::make_shared<Options>();
  CLI::App* task = app.add_subcommand("task", "List, show, check, compare and start tasks");
  task->require_subcommand(1);
  CLI::App* listing = task->add_subcommand("list", "All tasks, one a line");
  listing->add_flag("--json", options->json, "Machine-readable output");
  listing->add_flag("--names", options->names, "Only the names");
  listing->callback([options] { list(options->json, options->names); });
  add_with_task(*task, "show", "One task, everything that matters", options, true)
      ->callback([options] { show(options->task, options->json); });
  add_with_task(*task, "check", "Validate one contract, or all", options, false)
      ->callback([options, &exit_code] { exit_code = check(options->task, options->json); });
  CLI::App* render = task->add_subcommand("render", "Print the whole contract, templates merged");
  render->add_option("task", options->task, "Task")->required()->type_name("TASK");
  render->callback([options] { std::cout << find_task(options->task).text; });
  CLI::App* compare =
      add_with_task(*task, "diff", "Compare two contracts field by field", options, true);
  compare->add_option("other", options->other, "The other task")->required()->type_name("TASK");
  compare->callback([options] { diff(options->task, options->other, options->json); });
  add_new(*task, options);
  add_export(*task, options);
  add_import(*task, options);
}

}  // namespace cbench
