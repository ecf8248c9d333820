#include "preflight/preflight.h"

#include <algorithm>

#include "preflight/checks.h"
#include "util/json.h"
#include "util/text.h"

namespace cbench {
namespace {

constexpr double kQuick = 15, kBox = 60, kHashes = 300, kFullHashes = 4 * 3600, kAgent = 120;

}  // namespace

bool needs_cuda(const Contract& contract, const PreflightOptions& options) {
  return (options.device.empty() ? contract.hardware.device : options.device) == "cuda";
}

std::vector<Check> preflight_checks(const Contract& c, const PreflightOptions& o) {
  std::vector<Check> checks;
  const auto add = [&](const char* name, double seconds, std::function<void(CheckLines&)> run) {
    checks.push_back({name, seconds, std::move(run)});
  };
  add("build", kQuick, [&](CheckLines& l) { check_build(c, o, l); });
  add("gpu", kQuick, [&](CheckLines& l) { check_gpu(c, o, l); });
  add("compilers", kQuick, [&](CheckLines& l) { check_compilers(c, o, l); });
  add("clock", kQuick, [&](CheckLines& l) { check_clock(c, l); });
  add("disk", kBox, [&](CheckLines& l) { check_disk(c, o, l); });
  add("box", kBox, [&](CheckLines& l) { check_box(o, l); });
  add("isolation", kBox, [&](CheckLines& l) { check_isolation(o, l); });
  add("python", kBox, [&](CheckLines& l) { check_python(o, l); });
  if (o.box == BoxKind::kDocker) {
    add("docker", 180, [&](CheckLines& l) { check_docker(c, o, l); });
  }
  add("route", kAgent, [&](CheckLines& l) { check_route(o, l); });
  add("agent", kAgent, [&](CheckLines& l) { check_agent_start(o, l); });
  add("agent.run", kQuick, [&](CheckLines& l) { check_agent_run(o, l); });
  add("leftovers", kQuick, [&](CheckLines& l) { check_leftovers(o, l); });
  add("checkpoint", kQuick, [&](CheckLines& l) { check_checkpoint(c, l); });
  add("fetched", o.full ? kFullHashes : kHashes, [&](CheckLines& l) { check_fetched(c, o, l); });
  add("token", kQuick, [&](CheckLines& l) { check_token(c, l); });
  add("selection", kHashes, [&](CheckLines& l) { check_selection(c, l); });
  add("reference", kBox, [&](CheckLines& l) { check_reference(c, l); });
  if (o.self_check) {
    add("self_check", c.timeouts.check + 60, [&](CheckLines& l) { check_model(c, o, l); });
  }
  return checks;
}

PreflightReport run_preflight(const std::string& task, const std::string& box,
                              const std::vector<Check>& checks,
                              const std::function<void(const CheckLine&)>& on_line) {
  PreflightReport report{task, box, {}};
  for (const Check& check : checks) {
    for (CheckLine& line : run_check(check)) {
      if (on_line) on_line(line);
      report.lines.push_back(std::move(line));
    }
  }
  return report;
}

int PreflightReport::count(CheckLevel level) const {
  return static_cast<int>(
      std::ranges::count_if(lines, [&](const CheckLine& line) { return line.level == level; }));
}

bool PreflightReport::ready() const { return !lines.empty() && count(CheckLevel::kFail) == 0; }

std::string preflight_json(const PreflightReport& report) {
  Json checks = Json::array();
  for (const CheckLine& line : report.lines) {
    checks.push_back({{"name", line.name},
                      {"status", check_level_name(line.level)},
                      {"seen", line.seen},
                      {"do", line.todo}});
  }
  const Json json = {{"schema", "cbench.preflight.v1"},
                     {"task", report.task},
                     {"box", report.box},
                     {"ready", report.ready()},
                     {"failed", report.count(CheckLevel::kFail)},
                     {"warned", report.count(CheckLevel::kWarn)},
                     {"checks", checks}};
  return dump_json(json, 2) + "\n";
}

std::string preflight_row(const CheckLine& line) {
  std::string level = check_level_name(line.level), name = line.name;
  level.resize(std::max<size_t>(level.size(), 6), ' ');
  name.resize(std::max<size_t>(name.size(), 16), ' ');
  std::string row = level + name + printable(line.seen, 400) + "\n";
  if (!line.todo.empty()) row += std::string(22, ' ') + "-> " + printable(line.todo, 400) + "\n";
  return row;
}

}  // namespace cbench
