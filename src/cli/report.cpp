// cbench report: leaderboard.csv, ablations.csv and the page, from the runs directory.
#include <iostream>

#include "cli/commands.h"
#include "report/html.h"
#include "report/leaderboard.h"
#include "util/error.h"
#include "util/file.h"
#include "util/json.h"

namespace cbench {
namespace {

struct Options {
  std::string runs_dir = "runs", out, html;
  bool published = false, json = false;
};

void report(const Options& options) {
  const std::vector<RankedRun> runs = rank_runs(read_runs(options.runs_dir));
  std::vector<Contract> published;
  if (options.published) {
    const std::string root = default_tasks_root();
    for (const std::string& name : list_tasks(root)) published.push_back(find_task(name, root));
  }
  const std::string out = options.out.empty() ? options.runs_dir : options.out;
  make_directories(out);
  const std::string leaderboard = out + "/leaderboard.csv";
  write_file_atomic(leaderboard, leaderboard_csv(runs, published));
  std::vector<std::string> written{leaderboard};
  if (!runs.empty()) {
    written.push_back(out + "/ablations.csv");
    write_file_atomic(written.back(), ablations_csv(runs));
  }
  if (!options.html.empty()) {
    written.push_back(options.html);
    write_file_atomic(options.html, report_html(runs));
  }
  size_t ranked = 0;
  for (const RankedRun& run : runs) ranked += run.rank > 0 ? 1 : 0;
  if (options.json) {
    const Json summary = {{"schema", "cbench.report.v1"},
                          {"runs", runs.size()},
                          {"ranked", ranked},
                          {"files", written}};
    std::cout << dump_json(summary) << "\n";
    return;
  }
  std::cout << runs.size() << " runs, " << ranked << " ranked\n";
  for (const std::string& file : written) std::cout << file << "\n";
}

}  // namespace

void add_report(CLI::App& app, int& exit_code) {
  auto options = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand("report", "Regenerate leaderboard.csv from the runs");
  command->add_option("--runs-dir", options->runs_dir, "Directory of the runs")
      ->capture_default_str()
      ->type_name("DIR");
  command->add_option("--out", options->out, "Where to write (default: the runs directory)")
      ->type_name("DIR");
  command->add_option("--html", options->html, "Also write one self-contained page")
      ->type_name("FILE");
  command->add_flag("--published", options->published, "Add the published BF16 rows of the suite");
  command->add_flag("--json", options->json, "Machine-readable output");
  command->callback([options, &exit_code] {
    report(*options);
    exit_code = static_cast<int>(Exit::kOk);
  });
}

}  // namespace cbench
