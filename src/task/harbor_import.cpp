#include "task/harbor_import.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>
#include <sstream>

#define TOML_HEADER_ONLY 1
#include <toml++/toml.h>

#include "util/error.h"
#include "util/file.h"
#include "util/json.h"
#include "util/text.h"
#include "util/units.h"

namespace cbench {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kMaxToml = 1u << 20;
constexpr int kMaxDepth = 24;

[[noreturn]] void refuse(const std::string& what) { throw UsageError("harbor", what); }

Json json_of(const toml::node& node, int depth = 0) {
  if (depth > kMaxDepth) refuse("task.toml is nested too deeply");
  if (const auto* table = node.as_table()) {
    Json object = Json::object();
    for (const auto& [key, value] : *table)
      object[std::string(key.str())] = json_of(value, depth + 1);
    return object;
  }
  if (const auto* array = node.as_array()) {
    Json list = Json::array();
    for (const toml::node& value : *array) list.push_back(json_of(value, depth + 1));
    return list;
  }
  if (const auto* text = node.as_string()) return text->get();
  if (const auto* integer = node.as_integer()) return integer->get();
  if (const auto* number = node.as_floating_point()) return number->get();
  if (const auto* flag = node.as_boolean()) return flag->get();
  std::ostringstream text;  // dates and times, in their own spelling
  if (const auto* date = node.as_date()) text << date->get();
  if (const auto* time = node.as_time()) text << time->get();
  if (const auto* both = node.as_date_time()) text << both->get();
  return text.str();
}

/// The keys of each table that are known.
const std::map<std::string, std::set<std::string>>& known_keys() {
  static const std::set<std::string> environment = {"build_timeout_sec",
                                                    "docker_image",
                                                    "os",
                                                    "cpus",
                                                    "memory_mb",
                                                    "storage_mb",
                                                    "gpus",
                                                    "gpu_types",
                                                    "network_mode",
                                                    "allowed_hosts",
                                                    "allow_internet",
                                                    "env",
                                                    "skills_dir",
                                                    "mcp_servers",
                                                    "healthcheck",
                                                    "memory",
                                                    "storage"};
  static const std::map<std::string, std::set<std::string>> keys = {
      {"",
       {"schema_version", "version", "source", "artifacts", "multi_step_reward_strategy", "task",
        "metadata", "agent", "verifier", "environment", "solution", "steps"}},
      {"task", {"name", "version", "description", "authors", "keywords"}},
      {"agent", {"timeout_sec", "user", "network_mode", "allowed_hosts"}},
      {"verifier",
       {"timeout_sec", "env", "user", "network_mode", "allowed_hosts", "environment_mode",
        "environment", "collect"}},
      {"environment", environment},
      {"verifier.environment", environment},
      {"solution", {"env"}}};
  return keys;
}

class Importer {
 public:
  explicit Importer(const std::string& directory) : directory_(directory) {}
  HarborMetadata run();

 private:
  void parse();
  void sort_out(const std::string& path, Json& table);
  void read_version();
  void read_sizes(const std::string& path, Json& table);
  void read_network(const std::string& path, Json& table);
  void check_values() const;
  void warn(const std::string& text) { warnings_.push_back(printable(text, 300)); }

  std::string directory_;
  Json all_ = Json::object(), unknown_ = Json::object();
  std::vector<std::string> warnings_;
};

void Importer::parse() {
  const std::string path = directory_ + "/task.toml";
  if (!fs::is_regular_file(path)) refuse(directory_ + " is no Harbor task: it has no task.toml");
  const std::string text = read_file(path, kMaxToml);
  try {
    all_ = json_of(toml::parse(text, path));
  } catch (const toml::parse_error& error) {
    std::ostringstream where;
    where << path << ":" << error.source().begin.line << ": " << error.description();
    refuse(where.str());
  }
}

/// Moves what is not understood to x_harbor.
void Importer::sort_out(const std::string& path, Json& table) {
  if (!table.is_object()) refuse("[" + path + "] must be a table");
  const std::set<std::string>& known = known_keys().at(path);
  std::vector<std::string> others;
  for (const auto& [key, value] : table.items()) {
    if (!known.contains(key)) others.push_back(key);
  }
  for (const std::string& key : others) {
    const std::string full = path.empty() ? key : path + "." + key;
    warn("unknown key " + full + " is kept under x_harbor");
    unknown_[full] = table[key];
    table.erase(key);
  }
}

void Importer::read_version() {
  const bool old = !all_.contains("schema_version") && all_.contains("version");
  const char* key = old ? "version" : "schema_version";
  if (!all_.contains(key)) refuse("task.toml states no schema_version");
  if (!all_[key].is_string()) refuse(std::string(key) + " must be a text such as \"1.4\"");
  const std::string version = all_[key];
  if (old) warn("version is the old spelling of schema_version");
  if (!version.starts_with("1.")) refuse("schema " + printable(version) + " is not 1.0 to 1.4");
  all_.erase("version");
  all_["schema_version"] = version;
}

/// "2G" -> 2048; Harbor counts in units of 1024.
void Importer::read_sizes(const std::string& path, Json& table) {
  for (const char* key : {"memory", "storage"}) {
    if (!table.contains(key)) continue;
    const std::string modern = std::string(key) + "_mb";
    if (!table[key].is_string()) refuse(path + "." + key + " must be a text such as \"2G\"");
    std::string text = table[key];
    while (text.ends_with('B') || text.ends_with('b') || text.ends_with('i')) text.pop_back();
    if (text.empty()) refuse(path + "." + key + " is empty");
    const char unit = text.back();
    const bool known = unit == 'K' || unit == 'M' || unit == 'G' || unit == 'T';
    const int64_t bytes =
        parse_size(known ? text.substr(0, text.size() - 1) + " " + unit + "iB" : text + " B");
    if (table.contains(modern)) warn(path + ": " + key + " is ignored, " + modern + " is given");
    if (!table.contains(modern)) table[modern] = bytes >> 20;
    warn(path + "." + key + " is the old spelling of " + modern);
    table.erase(key);
  }
}

void Importer::read_network(const std::string& path, Json& table) {
  if (table.contains("allow_internet")) {
    if (!table["allow_internet"].is_boolean())
      refuse(path + ".allow_internet must be true or false");
    warn(path + ".allow_internet is the old spelling of network_mode");
    if (!table.contains("network_mode")) {
      table["network_mode"] = table["allow_internet"].get<bool>() ? "public" : "no-network";
    }
    table.erase("allow_internet");
  }
  if (!table.contains("network_mode")) return;
  const Json& mode = table["network_mode"];
  if (mode != "public" && mode != "no-network" && mode != "allowlist") {
    refuse(path + ".network_mode must be public, no-network or allowlist");
  }
  if (table.contains("allowed_hosts") && mode != "allowlist") {
    refuse(path + ".allowed_hosts needs network_mode = \"allowlist\"");
  }
}

void Importer::check_values() const {
  const auto number = [&](const char* table, const char* key) {
    if (!all_.contains(table) || !all_[table].contains(key)) return;
    const Json& value = all_[table][key];
    // Written so that nan is refused, too.
    if (!value.is_number() || !(value.get<double>() >= 0 && value.get<double>() <= 1e9)) {
      refuse(std::string(table) + "." + key + " must be a number from 0 to 1e9");
    }
  };
  for (const char* table : {"agent", "verifier"}) number(table, "timeout_sec");
  for (const char* key : {"build_timeout_sec", "cpus", "memory_mb", "storage_mb", "gpus"}) {
    number("environment", key);
  }
  if (!all_.contains("task") || !all_["task"].contains("name")) return;
  const Json& name = all_["task"]["name"];
  const std::string text = name.is_string() ? name.get<std::string>() : "";
  const bool plain = std::ranges::all_of(text, [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
           c == '_' || c == '.' || c == '/';
  });
  if (!plain || std::ranges::count(text, '/') != 1 || text.starts_with('/') ||
      text.ends_with('/') || text.find("..") != std::string::npos) {
    refuse("task.name must read org/name, found " + printable(dump_json(name), 80));
  }
}

HarborMetadata Importer::run() {
  parse();
  sort_out("", all_);
  read_version();
  for (const char* path : {"task", "agent", "verifier", "environment", "solution"}) {
    if (all_.contains(path)) sort_out(path, all_[path]);
  }
  if (all_.contains("verifier") && all_["verifier"].contains("environment")) {
    Json& inner = all_["verifier"]["environment"];
    sort_out("verifier.environment", inner);
    read_sizes("verifier.environment", inner);
    read_network("verifier.environment", inner);
  }
  if (all_.contains("environment")) read_sizes("environment", all_["environment"]);
  for (const char* path : {"agent", "verifier", "environment"}) {
    if (all_.contains(path)) read_network(path, all_[path]);
  }
  check_values();
  const bool steps = fs::is_directory(directory_ + "/steps");
  for (const char* file : {"instruction.md", "tests/test.sh"}) {
    if (!steps && !fs::is_regular_file(directory_ + "/" + file)) {
      refuse(directory_ + " is no Harbor task: it has no " + file);
    }
  }
  all_["x_harbor"] = unknown_;
  Json out = {{"schema", "cbench.harbor.v1"}};
  out.update(all_);
  return {dump_json(out, 2) + "\n", warnings_};
}

}  // namespace

HarborMetadata import_harbor(const std::string& directory) { return Importer(directory).run(); }

}  // namespace cbench
