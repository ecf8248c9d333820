#include "package/manifest.h"

#include <algorithm>
#include <array>
#include <initializer_list>

#include "package/path_rules.h"
#include "util/error.h"
#include "util/json.h"
#include "util/text.h"

namespace cbench {
namespace {

constexpr int64_t kMaxLayers = 4096;
constexpr int64_t kMaxExperts = 65'536;
constexpr int64_t kMaxWidth = int64_t{1} << 24;
constexpr size_t kMaxNameBytes = 1024;
constexpr size_t kMaxSources = 256;

constexpr std::array<std::string_view, 4> kCompiled = {".cpp", ".cc", ".c", ".cu"};

/// Reads one manifest; `source_` and a path such as graph.layers stand in every message.
class Reader {
 public:
  explicit Reader(std::string_view source) : source_(source) {}

  Manifest read(const SortedJson& json);

 private:
  [[noreturn]] void refuse(std::string_view code, const std::string& where,
                           const std::string& what) const {
    throw UsageError(code, std::string(source_) + ": " + printable(where) + " " + what);
  }
  void expect_keys(const SortedJson& object, const std::string& where,
                   std::initializer_list<const char*> allowed) const;
  const SortedJson* member(const SortedJson& object, const char* key) const;
  std::string text(const SortedJson& value, const std::string& where) const;
  std::string name(const std::string& value, const std::string& where) const;
  std::string format_name(const std::string& value, const std::string& where) const;
  int64_t integer(const SortedJson& value, const std::string& where, int64_t low,
                  int64_t high) const;
  int layer_key(const std::string& key, const std::string& where) const;
  std::vector<int> increasing(const SortedJson& value, const std::string& where,
                              int64_t limit) const;
  std::string path(const SortedJson& value, const std::string& where) const;
  void read_plugin(const SortedJson& json, PluginFiles& plugin) const;
  void read_formats(const SortedJson& json, Manifest& out) const;
  void read_matrices(const SortedJson& json, Manifest& out) const;
  void read_graph(const SortedJson& json, GraphOverrides& graph) const;
  void check_together(const Manifest& out) const;
  void check_layer_kept(const GraphOverrides& graph, int layer, const std::string& where) const;

  std::string_view source_;
};

void Reader::expect_keys(const SortedJson& object, const std::string& where,
                         std::initializer_list<const char*> allowed) const {
  if (!object.is_object()) refuse("json_type", where, "must be an object");
  const std::vector<std::string> names(allowed.begin(), allowed.end());
  for (const auto& [key, value] : object.items()) {
    if (std::find(names.begin(), names.end(), key) != names.end()) continue;
    const std::string near = nearest(key, names);
    refuse("unknown_key", where,
           "has the unknown key \"" + printable(key, 60) + "\"" +
               (near.empty() ? "" : "; did you mean \"" + near + "\"?"));
  }
}

const SortedJson* Reader::member(const SortedJson& object, const char* key) const {
  const auto found = object.find(key);
  return found == object.end() ? nullptr : &*found;
}

std::string Reader::text(const SortedJson& value, const std::string& where) const {
  if (!value.is_string()) refuse("json_type", where, "must be a string");
  return value.get<std::string>();
}

/// A tensor's name: any printable text of a bounded length.
std::string Reader::name(const std::string& value, const std::string& where) const {
  const bool control = std::any_of(value.begin(), value.end(), [](char c) {
    return static_cast<unsigned char>(c) < 0x20 || c == 0x7f;
  });
  if (value.empty() || value.size() > kMaxNameBytes || control) {
    refuse("out_of_range", where, "must be a name of 1 to 1024 bytes without control characters");
  }
  return value;
}

/// Names of formats and tasks: letters, digits and "_.-", at most 128.
std::string Reader::format_name(const std::string& value, const std::string& where) const {
  const bool plain = std::all_of(value.begin(), value.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '.' || c == '-';
  });
  if (value.empty() || value.size() > 128 || !plain) {
    refuse("out_of_range", where, "must be 1 to 128 letters, digits, '_', '.' or '-'");
  }
  return value;
}

int64_t Reader::integer(const SortedJson& value, const std::string& where, int64_t low,
                        int64_t high) const {
  if (!value.is_number_integer()) refuse("json_type", where, "must be an integer");
  const bool huge = value.is_number_unsigned() && value.get<uint64_t>() > uint64_t{INT64_MAX};
  const int64_t number = huge ? INT64_MAX : value.get<int64_t>();
  if (number < low || number > high) {
    refuse("out_of_range", where,
           "must be from " + std::to_string(low) + " to " + std::to_string(high));
  }
  return number;
}

/// A layer number as an object's key: decimal digits in their one canonical form.
int Reader::layer_key(const std::string& key, const std::string& where) const {
  const bool digits = !key.empty() && key.size() <= 4 &&
                      key.find_first_not_of("0123456789") == std::string::npos &&
                      (key.size() == 1 || key[0] != '0');
  int layer = 0;
  if (digits) {
    for (const char c : key) layer = layer * 10 + (c - '0');
  }
  if (!digits || layer >= kMaxLayers) {
    refuse("out_of_range", where,
           "needs layer numbers below 4096 as keys, found \"" + printable(key, 40) + "\"");
  }
  return layer;
}

std::vector<int> Reader::increasing(const SortedJson& value, const std::string& where,
                                    int64_t limit) const {
  if (!value.is_array()) refuse("json_type", where, "must be a list of integers");
  if (value.empty()) refuse("out_of_range", where, "must keep at least one");
  std::vector<int> out;
  for (const SortedJson& item : value) {
    const int number = static_cast<int>(integer(item, where, 0, limit - 1));
    if (!out.empty() && number <= out.back()) {
      refuse("not_increasing", where,
             "must be strictly increasing: " + std::to_string(number) + " follows " +
                 std::to_string(out.back()));
    }
    out.push_back(number);
  }
  return out;
}

std::string Reader::path(const SortedJson& value, const std::string& where) const {
  std::string out = text(value, where);
  if (!is_plain_path(out)) {
    refuse("bad_path", where,
           "must be a plain relative path inside the package, found \"" + printable(out) + "\"");
  }
  return out;
}

void Reader::read_plugin(const SortedJson& json, PluginFiles& plugin) const {
  expect_keys(json, "plugin", {"sources", "library"});
  const SortedJson* sources = member(json, "sources");
  const SortedJson* library = member(json, "library");
  if ((sources == nullptr) == (library == nullptr)) {
    refuse("conflict", "plugin", "needs either \"sources\" or \"library\"");
  }
  if (library != nullptr) {
    plugin.library = path(*library, "plugin.library");
    if (!plugin.library.ends_with(".so")) refuse("bad_path", "plugin.library", "must end in .so");
    return;
  }
  if (!sources->is_array() || sources->empty() || sources->size() > kMaxSources) {
    refuse("json_type", "plugin.sources", "must be a list of 1 to 256 paths");
  }
  for (const SortedJson& item : *sources) {
    std::string file = path(item, "plugin.sources");
    const bool compiled = std::any_of(kCompiled.begin(), kCompiled.end(),
                                      [&](std::string_view end) { return file.ends_with(end); });
    if (!compiled) {
      refuse("bad_path", "plugin.sources",
             "must end in .cpp, .cc, .c or .cu, found \"" + printable(file) +
                 "\"; headers are not listed");
    }
    if (std::find(plugin.sources.begin(), plugin.sources.end(), file) != plugin.sources.end()) {
      refuse("conflict", "plugin.sources", "lists \"" + printable(file) + "\" twice");
    }
    plugin.sources.push_back(std::move(file));
  }
}

void Reader::read_formats(const SortedJson& json, Manifest& out) const {
  if (!json.is_object()) refuse("json_type", "formats", "must be an object");
  for (const auto& [key, value] : json.items()) {
    if (!value.is_object()) refuse("json_type", "formats." + key, "must be an object");
    out.formats.emplace(format_name(key, "a name in formats"), value.dump());
  }
}

void Reader::read_matrices(const SortedJson& json, Manifest& out) const {
  if (!json.is_object()) refuse("json_type", "matrices", "must be an object");
  for (const auto& [key, value] : json.items()) {
    const std::string where = "matrices.\"" + key + "\"";
    std::string format = text(value, where);
    if (out.formats.count(format) == 0) {
      std::vector<std::string> names;
      for (const auto& [known, parameters] : out.formats) names.push_back(known);
      const std::string near = nearest(format, names);
      refuse("unknown_format", where,
             "names the format \"" + printable(format, 60) + "\", which formats does not define" +
                 (near.empty() ? "" : "; did you mean \"" + near + "\"?"));
    }
    out.matrices.emplace(name(key, "a name in matrices"), std::move(format));
  }
}

void Reader::check_layer_kept(const GraphOverrides& graph, int layer,
                              const std::string& where) const {
  if (graph.layers && !std::binary_search(graph.layers->begin(), graph.layers->end(), layer)) {
    refuse("conflict", where,
           "names layer " + std::to_string(layer) + ", which graph.layers drops");
  }
}

void Reader::read_graph(const SortedJson& json, GraphOverrides& graph) const {
  expect_keys(json, "graph", {"layers", "mlp_width", "experts", "low_rank"});
  if (const SortedJson* layers = member(json, "layers")) {
    graph.layers = increasing(*layers, "graph.layers", kMaxLayers);
  }
  const auto object = [&](const char* key) -> const SortedJson& {
    static const SortedJson empty = SortedJson::object();
    const SortedJson* found = member(json, key);
    if (found == nullptr) return empty;
    if (!found->is_object()) {
      refuse("json_type", "graph." + std::string(key), "must be an object");
    }
    return *found;
  };
  for (const auto& [key, value] : object("mlp_width").items()) {
    const int layer = layer_key(key, "graph.mlp_width");
    check_layer_kept(graph, layer, "graph.mlp_width");
    graph.mlp_width[layer] = integer(value, "graph.mlp_width." + key, 1, kMaxWidth);
  }
  for (const auto& [key, value] : object("experts").items()) {
    const int layer = layer_key(key, "graph.experts");
    check_layer_kept(graph, layer, "graph.experts");
    graph.experts[layer] = increasing(value, "graph.experts." + key, kMaxExperts);
  }
  for (const auto& [key, value] : object("low_rank").items()) {
    graph.low_rank[name(key, "a name in graph.low_rank")] =
        integer(value, "graph.low_rank.\"" + key + "\"", 1, kMaxWidth);
  }
}

void Reader::check_together(const Manifest& out) const {
  if (!out.matrices.empty() && !out.plugin.present()) {
    refuse("plugin_missing", "matrices", "names plugin formats, but there is no plugin");
  }
  for (const auto& [matrix, rank] : out.graph.low_rank) {
    if (out.matrices.count(matrix) != 0) {
      refuse("conflict", "matrices.\"" + matrix + "\"",
             "is split by graph.low_rank: list its .A and .B instead");
    }
  }
}

Manifest Reader::read(const SortedJson& json) {
  expect_keys(json, "the manifest", {"format", "task", "plugin", "formats", "matrices", "graph"});
  const SortedJson* version = member(json, "format");
  if (version == nullptr) refuse("json_missing", "the manifest", "needs \"format\": 1");
  if (!version->is_number_integer() || *version != 1) {
    refuse("format_version", "format", "must be 1, the only version there is");
  }
  Manifest out;
  if (const SortedJson* task = member(json, "task")) {
    out.task = format_name(text(*task, "task"), "task");
  }
  if (const SortedJson* plugin = member(json, "plugin")) read_plugin(*plugin, out.plugin);
  if (const SortedJson* formats = member(json, "formats")) read_formats(*formats, out);
  if (const SortedJson* matrices = member(json, "matrices")) read_matrices(*matrices, out);
  if (const SortedJson* graph = member(json, "graph")) read_graph(*graph, out.graph);
  check_together(out);
  return out;
}

}  // namespace

const std::string* Manifest::parameters_of(std::string_view matrix) const {
  const auto found = matrices.find(matrix);
  return found == matrices.end() ? nullptr : &formats.find(found->second)->second;
}

Manifest parse_manifest(std::string_view bytes, std::string_view source) {
  return Reader(source).read(
      parse_sorted_json(bytes, source, {.max_bytes = kMaxManifestBytes, .max_depth = 32}));
}

}  // namespace cbench
