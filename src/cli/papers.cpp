// cbench papers: list and search the papers of a task, offline; made for use inside the agent's
// box.
#include <filesystem>
#include <iomanip>
#include <iostream>

#include "cli/commands.h"
#include "fetch/paper_search.h"
#include "task/contract.h"
#include "util/error.h"
#include "util/json.h"

namespace cbench {
namespace {

namespace fs = std::filesystem;

struct PapersArguments {
  std::string dir, task;
  std::vector<std::string> query;
  size_t limit = 10;
  bool json = false;
};

bool holds_papers(const std::string& dir) {
  std::error_code error;
  return fs::exists(dir + "/papers.jsonl", error);
}

/// --dir, the task's papers, the places of the agent's box, or those of the only task there is.
std::string papers_dir(const PapersArguments& arguments) {
  if (!arguments.dir.empty()) return arguments.dir;
  if (arguments.task.empty()) {
    for (const char* place : {"/input/data/papers", "/input/papers"}) {
      if (holds_papers(place)) return place;
    }
  }
  std::vector<std::string> names = {arguments.task};
  if (arguments.task.empty()) names = list_tasks(default_tasks_root());
  std::string found;
  for (const std::string& name : names) {
    const Contract contract = find_task(name);
    const std::string dir = contract.data_path(contract.data.visible) + "/papers";
    if (arguments.task.empty() && !holds_papers(dir)) continue;
    if (!found.empty() && found != dir) {
      throw UsageError("no_task", "several tasks have papers; give --task NAME or --dir DIR");
    }
    found = dir;
  }
  if (found.empty()) {
    throw EnvironmentError("no_papers", "no task has papers yet; run cbench fetch TASK");
  }
  return found;
}

void warn_skipped(const PaperIndex& index) {
  for (const std::string& skipped : index.skipped()) {
    std::cerr << "cbench: left out: " << skipped << "\n";
  }
}

void list(const PapersArguments& arguments) {
  const std::string dir = papers_dir(arguments);
  const PaperIndex index(dir);
  Json array = Json::array();
  for (const PaperEntry& paper : index.papers()) {
    if (!arguments.json) {
      std::cout << std::setw(8) << paper.words << "  " << dir << "/" << paper.file << "\n"
                << std::setw(8) << ""
                << "  " << paper.title << "\n";
    }
    array.push_back(
        {{"title", paper.title}, {"file", dir + "/" + paper.file}, {"words", paper.words}});
  }
  if (arguments.json) {
    std::cout << dump_json({{"schema", "cbench.papers.v1"}, {"papers", array}}, 2) << "\n";
  }
  warn_skipped(index);
}

int search(const PapersArguments& arguments) {
  const std::string dir = papers_dir(arguments);
  const PaperIndex index(dir);
  std::string query;
  for (const std::string& word : arguments.query) query += word + " ";
  const std::vector<PaperHit> hits = index.search(query, arguments.limit);
  Json array = Json::array();
  for (const PaperHit& hit : hits) {
    const std::string file = dir + "/" + hit.paper.file;
    if (!arguments.json) {
      std::cout << hit.paper.title << "  [" << std::fixed << std::setprecision(2) << hit.score
                << "]\n"
                << "  " << file << ":" << hit.line << "\n  " << hit.snippet << "\n";
    }
    array.push_back({{"title", hit.paper.title},
                     {"file", file},
                     {"line", hit.line},
                     {"score", hit.score},
                     {"snippet", hit.snippet}});
  }
  if (arguments.json) {
    std::cout << dump_json({{"schema", "cbench.papers.v1"}, {"hits", array}}, 2) << "\n";
  } else if (hits.empty()) {
    std::cout << "no paper holds any of these words\n";
  }
  warn_skipped(index);
  return 0;
}

void add_places(CLI::App& command, const std::shared_ptr<PapersArguments>& arguments) {
  command.add_option("--dir", arguments->dir, "Folder with papers.jsonl and text/")
      ->type_name("DIR");
  command.add_option("--task", arguments->task, "Papers of this task")->type_name("TASK");
  command.add_flag("--json", arguments->json, "Machine-readable output");
}

}  // namespace

void add_papers(CLI::App& app, int& exit_code) {
  auto arguments = std::make_shared<PapersArguments>();
  CLI::App* papers = app.add_subcommand("papers", "List and search a task's papers, offline");
  papers->require_subcommand(1);
  CLI::App* listing = papers->add_subcommand("list", "Words, file and title of every paper");
  add_places(*listing, arguments);
  listing->callback([arguments] { list(*arguments); });
  CLI::App* searching = papers->add_subcommand("search", "Papers that match, best first");
  searching->add_option("query", arguments->query, "Words to look for")->required();
  searching->add_option("-n,--limit", arguments->limit, "At most so many")
      ->check(CLI::Range(1, 1000));
  add_places(*searching, arguments);
  searching->callback([arguments, &exit_code] { exit_code = search(*arguments); });
}

}  // namespace cbench
