#include "task/scaffold.h"

#include <filesystem>

#include "task/contract.h"
#include "task/yaml_tree.h"
#include "util/error.h"
#include "util/file.h"
#include "util/text.h"

namespace cbench {
namespace {

namespace fs = std::filesystem;

/// The existing task's include line, so that both keep sharing what they share.
std::string include_of(const std::string& from, const std::string& tasks_root) {
  const Contract source = find_task(from, tasks_root);
  const YamlNode tree = parse_yaml(read_file(source.path, kMaxYamlBytes + 1), source.path);
  const YamlNode* include = tree.find("include");
  if (include == nullptr) {
    throw UsageError("contract_include", source.path +
                                             " includes no template; copy the file instead of "
                                             "using --from");
  }
  if (include->kind == YamlNode::Kind::kScalar) return quote_yaml(include->value);
  std::string list;
  for (const YamlNode& one : include->children) {
    list += (list.empty() ? "[" : ", ") + quote_yaml(one.value);
  }
  return list + "]";
}

std::string contract_text(const NewTask& task, const std::string& tasks_root) {
  const std::string title = "title: " + quote_yaml("Compress to " + task.limit) + "\n";
  const std::string limit = "limit: " + task.limit + "\n";
  if (!task.from.empty()) {
    return "include: " + include_of(task.from, tasks_root) + "\n" + title + limit;
  }
  const std::string model = task.repository.substr(task.repository.find('/') + 1);
  return "include: ../shared/" + task.protocol + ".yaml\n" + title + limit +
         "\nmodel:\n  name: " + quote_yaml(model) +
         "\n  repository: " + quote_yaml(task.repository) +
         "\n  revision: main\n  architecture: " + quote_yaml(task.architecture) +
         "\n  parameters: " + task.parameters + "\n\ndata:\n  root: data/" + model +
         "\n  items: items\n  shots: shots\n  documents: documents\n  reference: reference\n"
         "  visible: visible\n";
}

}  // namespace

std::string create_task(const NewTask& task, const std::string& tasks_root) {
  const bool plain = task.name.find('/') == std::string::npos && !task.name.starts_with(".");
  if (task.name.empty() || !plain) {
    throw UsageError("usage", "\"" + printable(task.name) + "\" is no name for a task directory");
  }
  const fs::path directory = fs::path(tasks_root) / task.name;
  if (fs::exists(directory)) {
    throw UsageError("task_exists", directory.string() + " exists already");
  }
  const std::string text = contract_text(task, tasks_root);
  make_directories(directory.string());
  std::string path = (directory / "contract.yaml").string();
  try {
    write_file_atomic(path, text);
    load_contract(path);
  } catch (...) {
    remove_tree(directory.string());
    throw;
  }
  return path;
}

}  // namespace cbench
