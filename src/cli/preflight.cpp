// cbench preflight: one table of checks; exit 0 only if a run of the task would work here.
#include "preflight/preflight.h"

#include <iostream>

#include "cli/commands.h"
#include "relay/route.h"
#include "util/error.h"

namespace cbench {
namespace {

struct PreflightArguments {
  std::string task, box = "bwrap";
  PreflightOptions options;
  bool json = false, no_self_check = false;
};

int preflight(PreflightArguments& a) {
  const Contract contract = find_task(a.task);
  set_box_image(contract.image);
  relay::agent_kind(a.options.agent);
  a.options.box = parse_box_kind(a.box);
  a.options.self_check = !a.no_self_check;
  const auto checks = preflight_checks(contract, a.options);
  if (!a.json) std::cout << "preflight of " << contract.name << "\n" << std::flush;
  const PreflightReport report =
      run_preflight(contract.name, a.box, checks, [&](const CheckLine& line) {
        if (!a.json) std::cout << preflight_row(line) << std::flush;
      });
  if (a.json) {
    std::cout << preflight_json(report);
  } else if (report.ready()) {
    std::cout << "ready: " << report.count(CheckLevel::kWarn) << " warnings\n";
  } else {
    std::cout << "not ready: " << report.count(CheckLevel::kFail) << " checks fail\n";
  }
  return static_cast<int>(report.ready() ? Exit::kOk : Exit::kEnvironment);
}

}  // namespace

void add_preflight(CLI::App& app, int& exit_code) {
  auto a = std::make_shared<PreflightArguments>();
  CLI::App* command = app.add_subcommand(
      "preflight", "Check that a run of a task would work on this machine; exit 0 if so, else 3");
  command->add_option("task", a->task, "Task name, directory or contract.yaml")->required();
  command->add_option("--box", a->box, "bwrap, docker or direct")->capture_default_str();
  command->add_option("--agent", a->options.agent, "claude, codex, command:... or baseline")
      ->capture_default_str();
  command->add_option("--device", a->options.device, "cpu or cuda instead of the contract's")
      ->check(CLI::IsMember({"cpu", "cuda"}));
  command->add_option("--runs-dir", a->options.runs_dir, "Where runs will be kept")
      ->capture_default_str()
      ->type_name("DIR");
  command->add_flag("--full", a->options.full, "Hash every fetched file, not only size and time");
  command->add_flag("--no-self-check", a->no_self_check, "Do not run the BF16 model");
  command->add_flag("--json", a->json, "Machine-readable output");
  command->callback([a, &exit_code] { exit_code = preflight(*a); });
}

}  // namespace cbench
