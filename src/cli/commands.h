// The subcommands. Each add_* (one file per subcommand) declares its arguments on `app`; its
// callback runs the command and stores the process exit code in `exit_code`. Errors are thrown
// (util/error.h) and printed once, by main.
#pragma once

#include <CLI/CLI.hpp>

namespace cbench {

void add_tokenize(CLI::App& app, int& exit_code);
void add_inspect(CLI::App& app, int& exit_code);
void add_grade(CLI::App& app, int& exit_code);
void add_task(CLI::App& app, int& exit_code);
void add_fetch(CLI::App& app, int& exit_code);
void add_preflight(CLI::App& app, int& exit_code);
void add_engine(CLI::App& app, int& exit_code);
void add_check(CLI::App& app, int& exit_code);
void add_verify(CLI::App& app, int& exit_code);
void add_reference(CLI::App& app, int& exit_code);
void add_run(CLI::App& app, int& exit_code);
void add_status(CLI::App& app, int& exit_code);
void add_report(CLI::App& app, int& exit_code);
void add_papers(CLI::App& app, int& exit_code);
void add_bench(CLI::App& app, int& exit_code);
void add_pack(CLI::App& app, int& exit_code);
void add_version(CLI::App& app, int& exit_code);
void add_baseline_agent(CLI::App& app, int& exit_code);
void add_relay(CLI::App& app, int& exit_code);
void add_completion(CLI::App& app, int& exit_code);

}  // namespace cbench
