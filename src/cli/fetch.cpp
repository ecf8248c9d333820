// cbench fetch: everything a task needs, or one repository or file.
#include <atomic>
#include <cstdio>
#include <memory>

#include <signal.h>

#include "cli/commands.h"
#include "fetch/plan.h"
#include "fetch/task_plan.h"
#include "util/error.h"
#include "util/units.h"

namespace cbench {
namespace {

std::atomic<bool> interrupted{false};

/// The first signal ends the fetch in order; a second one ends the program.
void catch_interrupts() {
  struct sigaction action {};
  action.sa_handler = [](int) { interrupted = true; };
  action.sa_flags = static_cast<int>(SA_RESETHAND);
  ::sigaction(SIGINT, &action, nullptr);
  ::sigaction(SIGTERM, &action, nullptr);
}

struct Arguments {
  std::string task, repo, revision = "main", url, sha256, to, lock, verify = "fast", cache = "copy";
  std::vector<std::string> include, exclude;
  bool dataset = false, offline = false, json = false, update = false, quiet = false;
  int connections = 4;
};

FetchPlan plan_of(const Arguments& args) {
  const int given =
      (args.task.empty() ? 0 : 1) + (args.repo.empty() ? 0 : 1) + (args.url.empty() ? 0 : 1);
  if (given != 1) {
    throw UsageError("usage", "give a task, or --repo org/name --to DIR, or --url URL --to FILE");
  }
  if (!args.task.empty()) return plan_for(find_task(args.task));
  if (args.to.empty()) throw UsageError("usage", "--to is missing: where should the files go?");
  FetchPlan plan;
  plan.lock = args.lock;
  if (!args.repo.empty()) {
    HubRepoItem item;
    item.repo = {args.dataset ? RepoType::kDataset : RepoType::kModel, args.repo};
    item.revision = args.revision;
    item.include = args.include;
    item.exclude = args.exclude;
    plan.root = args.to;
    plan.items.push_back({"", item});
    return plan;
  }
  const size_t slash = args.to.rfind('/');
  plan.root = slash == std::string::npos ? "." : args.to.substr(0, std::max<size_t>(slash, 1));
  plan.items.push_back({slash == std::string::npos ? args.to : args.to.substr(slash + 1),
                        UrlItem{args.url, args.sha256}});
  return plan;
}

void print(const FetchReport& report) {
  for (const ItemReport& item : report.items) {
    std::string line = item.name + ": " + item.state + ", " + std::to_string(item.files) +
                       " files, " + format_size(item.bytes);
    if (!item.revision.empty()) line += ", commit " + item.revision.substr(0, 12);
    if (item.copied > 0) line += ", " + std::to_string(item.copied) + " from the cache";
    if (item.resumed > 0) line += ", " + std::to_string(item.resumed) + " continued";
    std::printf("%s\n", line.c_str());
    for (const std::string& problem : item.problems) std::printf("  %s\n", problem.c_str());
  }
  if (report.items.empty()) {
    std::printf("nothing to fetch: everything is part of the task\n");
  } else if (report.unchanged()) {
    std::printf("already complete: nothing was fetched (%s)\n", report.lock.c_str());
  }
}

int run(const Arguments& args) {
  catch_interrupts();
  FetchOptions options;
  options.hub = hub_options_from(process_environment());
  options.hub.offline = options.hub.offline || args.offline;
  options.verify = args.verify == "full" ? VerifyMode::kFull : VerifyMode::kFast;
  options.update = args.update;
  options.quiet = args.quiet;
  options.download.connections = args.connections;
  options.download.use_copies = args.cache == "copy";
  options.interrupt = &interrupted;
  const FetchReport report = fetch_all(plan_of(args), options);
  if (args.json) {
    std::printf("%s\n", report.json().c_str());
  } else {
    print(report);
  }
  return static_cast<int>(report.complete() ? Exit::kOk : Exit::kEnvironment);
}

}  // namespace

void add_fetch(CLI::App& app, int& exit_code) {
  auto args = std::make_shared<Arguments>();
  CLI::App* command =
      app.add_subcommand("fetch", "Download what a task needs, verified and resumable");
  command->add_option("task", args->task, "Task name or directory");
  command->add_option("--repo", args->repo, "Hub repository org/name instead of a task");
  command->add_flag("--dataset", args->dataset, "--repo is a data set, not a model");
  command->add_option("--revision", args->revision, "Branch, tag or commit")->capture_default_str();
  command->add_option("--include", args->include, "Only files matching this glob (repeatable)");
  command->add_option("--exclude", args->exclude, "No files matching this glob (repeatable)");
  command->add_option("--url", args->url, "One file by its address instead of a task");
  command->add_option("--sha256", args->sha256, "Expected hash of --url");
  command->add_option("--to", args->to, "Folder for --repo, file for --url");
  command->add_option("--lock", args->lock, "Where to keep lock.json (default: in the folder)");
  command
      ->add_option("--verify", args->verify,
                   "Check of present files: fast (size, time) or full (hash)")
      ->check(CLI::IsMember({"fast", "full"}))
      ->capture_default_str();
  command->add_option("--connections", args->connections, "Parallel connections")
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  command
      ->add_option("--cache", args->cache,
                   "Files in the Hugging Face cache: copy (verified) or off")
      ->check(CLI::IsMember({"copy", "off"}))
      ->capture_default_str();
  command->add_flag("--update", args->update, "Follow branches to their newest commit");
  command->add_flag("--offline", args->offline,
                    "Use no network: check, or complete from the cache");
  command->add_flag("--json", args->json, "One JSON object on standard output (docs/fetch.md)");
  command->add_flag("--quiet", args->quiet, "No progress display");
  command->callback([args, &exit_code] { exit_code = run(*args); });
}

}  // namespace cbench
