// Starts a new task from a template and checks that it loads.
#pragma once

#include <string>

namespace cbench {

struct NewTask {
  std::string name;        ///< directory name, e.g. "My-Model_10g_standard_1xH200NVL"
  std::string from;        ///< an existing task whose model and protocol to take, or ""
  std::string limit;       ///< "10 GiB"
  std::string protocol;    ///< template in tasks/shared, used without `from`
  std::string repository;  ///< "owner/name", used without `from`
  std::string architecture;
  std::string parameters;  ///< a whole number as text
};

/// Writes tasks/<name>/contract.yaml and returns its path. Throws UsageError ("task_exists",
/// "contract_*") and leaves nothing behind when the result would not load.
std::string create_task(const NewTask& task, const std::string& tasks_root);

}  // namespace cbench
