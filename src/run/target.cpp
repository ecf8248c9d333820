#include "run/target.h"

#include <charconv>
#include <filesystem>

#include "package/versions.h"
#include "task/contract.h"
#include "util/error.h"

namespace cbench {
namespace fs = std::filesystem;
namespace {

bool is_run(const fs::path& path) {
  return fs::is_regular_file(path / "journal.jsonl") && fs::is_regular_file(path / "contract.yaml");
}

/// "v12" or "v12.json" to 12; 0 if it is neither.
int version_number(std::string name) {
  if (name.ends_with(".json")) name.resize(name.size() - 5);
  int number = 0;
  if (!name.starts_with('v')) return 0;
  const auto [end, code] = std::from_chars(name.data() + 1, name.data() + name.size(), number);
  return code == std::errc{} && end == name.data() + name.size() && number > 0 ? number : 0;
}

Target version_target(const fs::path& run, int number) {
  Target target;
  target.run = run.string();
  target.task = task_of_run(target.run);
  target.version = number;
  target.copy = std::make_shared<TempDir>("cbench-version");
  target.package = target.copy->path() + "/submission";
  VersionStore((run / "versions").string()).materialise(number, target.package);
  return target;
}

}  // namespace

std::string task_of_run(const std::string& run_dir) {
  // Only the name is wanted; a frozen copy lies elsewhere than a task, so it needs a root.
  return load_contract(run_dir + "/contract.yaml", run_dir).name;
}

Target resolve_target(const std::string& path) {
  const fs::path given = fs::path(path).lexically_normal();
  const fs::path plain = given.has_filename() ? given : given.parent_path();
  const int number = version_number(plain.filename().string());
  const fs::path versions = plain.parent_path();
  if (number > 0 && versions.filename() == "versions" && is_run(versions.parent_path())) {
    return version_target(versions.parent_path(), number);
  }
  Target target;
  if (is_run(plain)) {
    target.run = plain.string();
    target.task = task_of_run(target.run);
    target.package = (plain / "submission").string();
    return target;
  }
  if (!fs::is_directory(plain)) {
    throw UsageError("no_package",
                     path +
                         " is no directory; give a package directory, a saved version "
                         "(RUN/versions/v3) or a run");
  }
  target.package = plain.string();
  return target;
}

}  // namespace cbench
