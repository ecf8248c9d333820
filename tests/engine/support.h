// Packages, plugins and engines for tests that cross the process border.
#pragma once

#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "engine/build.h"
#include "engine/client.h"
#include "model/config.h"
#include "package/package.h"
#include "package/safetensors.h"
#include "util/error.h"
#include "util/file.h"
#include "util/json.h"

namespace cbench::testing {

namespace fs = std::filesystem;

inline const Capacity kSmall{
    .tokens = 256, .sequences = 8, .slots = 8, .max_length = 256, .logits_rows = 16};

inline std::string golden_dir(const std::string& name) { return CBENCH_FIXTURES "/golden/" + name; }
inline std::string plugin_fixture(const std::string& name) {
  return CBENCH_FIXTURES "/plugins/" + name + ".cpp";
}

inline void put_file(const std::string& path, std::string_view bytes) {
  make_directories(fs::path(path).parent_path().string());
  std::ofstream(path, std::ios::binary) << bytes;
}

inline BoxKind test_box() { return BoxKind::kBwrap; }

/// A package directory made from a checkpoint: all its tensors under their own names, a manifest,
/// and (if `plugin` names a source) that source as src/plugin.cpp.
class TestPackage {
 public:
  explicit TestPackage(const std::string& checkpoint, const Json& manifest = Json::object(),
                       const std::string& plugin = "")
      : checkpoint_(checkpoint) {
    fs::copy_file(checkpoint + "/model.safetensors", path() + "/weights.safetensors");
    if (!plugin.empty()) {
      make_directories(path() + "/src");
      fs::copy_file(plugin, path() + "/src/plugin.cpp");
    }
    write_manifest(manifest, !plugin.empty());
  }

  std::string path() const { return dir_.path(); }
  std::string config() const { return read_file(checkpoint_ + "/config.json"); }

  void write_manifest(Json manifest, bool plugin = false) {
    manifest["format"] = 1;
    if (plugin) manifest["plugin"] = {{"sources", {"src/plugin.cpp"}}};
    put_file(path() + "/cbench.json", dump_json(manifest));
  }

  /// Rewrites the weights with what `change` makes of them.
  using Tensors = std::map<std::string, std::pair<Tensor, std::string>>;
  void change_tensors(const std::function<void(Tensors&)>& change) {
    Tensors tensors;
    {
      const TensorFile file(path() + "/weights.safetensors");
      for (const Tensor& t : file.tensors()) tensors[t.name] = {t, std::string(t.bytes)};
    }
    change(tensors);
    std::vector<Tensor> list;
    for (auto& [name, entry] : tensors) {
      entry.first.name = name;
      entry.first.bytes = entry.second;
      list.push_back(entry.first);
    }
    write_safetensors(path() + "/weights.safetensors", list);
  }

 private:
  TempDir dir_{"cbench-test-package"};
  std::string checkpoint_;
};

/// A manifest that gives every matrix of the model to the hostile plugin in one mode.
inline Json hostile_manifest(const std::string& config, const std::string& mode) {
  Json matrices = Json::object();
  for (const MatrixShape& m : model_matrices(parse_model_config(config, "config"))) {
    matrices[m.name] = "f";
  }
  return {{"formats", {{"f", {{"mode", mode}}}}}, {"matrices", matrices}};
}

/// Compiles a plugin source once per test program; returns the library.
inline std::string built_plugin(const std::string& source) {
  static std::map<std::string, std::string> built;
  static TempDir dir("cbench-test-plugins");
  if (const auto found = built.find(source); found != built.end()) return found->second;
  const std::string package = dir.path() + "/p" + std::to_string(built.size());
  const std::string out = dir.path() + "/o" + std::to_string(built.size());
  make_directories(package + "/src");
  fs::copy_file(source, package + "/src/plugin.cpp");
  Manifest manifest;
  manifest.plugin.sources = {"src/plugin.cpp"};
  PluginBuildOptions options;
  options.box = test_box();
  return built[source] = build_plugin(package, manifest, out, options);
}

inline EngineOptions engine_options(const TestPackage& package, const std::string& plugin = "") {
  EngineOptions options;
  options.package = package.path();
  options.plugin = plugin;
  options.config = package.config();
  options.program = CBENCH_BINARY_DIR "/cbench";
  options.box = test_box();
  options.capacity = kSmall;
  options.load_timeout = 30;
  options.reply_timeout = 30;
  return options;
}

/// An honest engine takes no more for caches, activations and workspace than was planned, and holds
/// nothing that nobody explains.
inline void expect_as_planned(const EngineMemory& memory) {
  for (int i = 0; i < kCategories; ++i) {
    const auto category = static_cast<Category>(i);
    if (is_model_storage(category)) continue;
    EXPECT_LE(memory.arena.live[static_cast<size_t>(i)], memory.planned[static_cast<size_t>(i)])
        << category_name(category);
  }
  EXPECT_EQ(memory.explained(), memory.arena.live_total());
  EXPECT_EQ(memory.unexplained(), 0) << memory.explain();
}

/// Logits of every row of the sequences [rows, vocab], each in a slot of its own, in one batch.
inline std::vector<float> engine_logits(Engine& engine,
                                        const std::vector<std::vector<int32_t>>& ids) {
  std::vector<EngineSequence> sequences;
  size_t rows = 0;
  for (size_t i = 0; i < ids.size(); ++i) {
    sequences.push_back({static_cast<int32_t>(i), 0, ids[i], 0});
    rows += ids[i].size();
  }
  const auto vocab = static_cast<size_t>(engine.vocab());
  std::vector<float> out(rows * vocab);
  engine.forward(sequences, [&](const float* chunk, int64_t first, int64_t n) {
    std::copy(chunk, chunk + static_cast<size_t>(n) * vocab,
              out.begin() + static_cast<ptrdiff_t>(static_cast<size_t>(first) * vocab));
  });
  return out;
}

/// The error that `action` throws; code "" when it throws none.
struct Caught {
  std::string code, message;
  Exit exit = Exit::kOk;
};
inline Caught caught(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    return {error.code(), error.what(), error.exit()};
  }
  return {};
}

/// Processes of this machine whose command line names `word`.
inline int processes_now_with(const std::string& word) {
  int count = 0;
  for (const auto& entry : fs::directory_iterator("/proc")) {
    std::ifstream in(entry.path() / "cmdline");
    const std::string line((std::istreambuf_iterator<char>(in)), {});
    count += line.find(word) != std::string::npos ? 1 : 0;
  }
  return count;
}
/// The same, once they had time to end: a sandbox says that its command ended a moment before its
/// namespace is gone.
inline int processes_with(const std::string& word) {
  int count = processes_now_with(word);
  for (int i = 0; i < 50 && count > 0; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    count = processes_now_with(word);
  }
  return count;
}

}  // namespace cbench::testing
