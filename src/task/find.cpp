// Where tasks are: the tasks directory, their names, and the paths inside one.
#include <algorithm>
#include <filesystem>

#include "task/contract.h"
#include "util/error.h"
#include "util/text.h"

namespace cbench {
namespace {

namespace fs = std::filesystem;

std::string& chosen_root() {
  static std::string root;
  return root;
}

bool holds_tasks(const fs::path& directory) {
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(directory, error)) {
    if (fs::is_regular_file(entry.path() / "contract.yaml", error)) return true;
  }
  return false;
}

std::string whole_path(const fs::path& path) {
  return fs::absolute(path).lexically_normal().string();
}

}  // namespace

std::string Contract::checkpoint_dir() const {
  if (!model.shipped) return data_path("checkpoint");
  return (fs::path(tasks_root) / model.repository).lexically_normal().string();
}

std::string Contract::data_path(const std::string& relative) const {
  const fs::path root = fs::path(tasks_root) / data.root;
  return (relative.empty() ? root : root / relative).lexically_normal().string();
}

void set_tasks_root(const std::string& directory) { chosen_root() = directory; }

std::string default_tasks_root() {
  if (!chosen_root().empty()) {
    std::error_code error;
    if (fs::is_directory(chosen_root(), error)) return whole_path(chosen_root());
    throw UsageError("no_tasks", "no directory \"" + printable(chosen_root()) + "\" (--tasks)");
  }
  std::vector<fs::path> places{"tasks"};
  std::error_code error;
  const fs::path binary = fs::read_symlink("/proc/self/exe", error).parent_path();
  for (const char* relative : {"tasks", "../tasks", "../../tasks", "../share/cbench/tasks"}) {
    if (!error) places.push_back(binary / relative);
  }
  for (const fs::path& place : places) {
    if (holds_tasks(place)) return whole_path(place);
  }
  throw UsageError("no_tasks",
                   "no tasks directory here or beside the program; name one with --tasks DIR");
}

std::vector<std::string> list_tasks(const std::string& tasks_root) {
  std::vector<std::string> names;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(tasks_root, error)) {
    if (fs::is_regular_file(entry.path() / "contract.yaml", error)) {
      names.push_back(entry.path().filename().string());
    }
  }
  std::sort(names.begin(), names.end());
  return names;
}

Contract find_task(const std::string& name_or_path, const std::string& tasks_root) {
  std::error_code error;
  const fs::path given = name_or_path;
  const bool is_path = name_or_path.find('/') != std::string::npos ||
                       given.extension() == ".yaml" || name_or_path == ".";
  if (is_path && fs::is_regular_file(given, error)) return load_contract(name_or_path);
  if (is_path && fs::is_regular_file(given / "contract.yaml", error)) {
    return load_contract((given / "contract.yaml").string());
  }
  if (is_path) {
    throw UsageError("unknown_task", "no contract.yaml at \"" + printable(name_or_path) +
                                         "\"; `cbench task list` shows the tasks");
  }
  const std::string root = tasks_root.empty() ? default_tasks_root() : tasks_root;
  const std::vector<std::string> names = list_tasks(root);
  if (std::find(names.begin(), names.end(), name_or_path) == names.end()) {
    const std::string near = nearest(name_or_path, names);
    throw UsageError("unknown_task", "no task \"" + printable(name_or_path) + "\" in " + root +
                                         (near.empty() ? "; `cbench task list` shows the tasks"
                                                       : "; did you mean " + near + "?"));
  }
  return load_contract((fs::path(root) / name_or_path / "contract.yaml").string());
}

}  // namespace cbench
