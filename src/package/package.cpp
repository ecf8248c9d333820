#include "package/package.h"

#include <array>
#include <filesystem>
#include <set>

#include "util/error.h"
#include "util/hash.h"
#include "util/text.h"

namespace cbench {
namespace {

constexpr std::array<const char*, 4> kOfficialNames = {"tokenizer.json", "tokenizer_config.json",
                                                       "config.json", "generation_config.json"};

}  // namespace

Package Package::open(const std::string& dir, const PackageOptions& options) {
  Package package;
  package.tree_ = PackageTree::walk(dir, options.limits);
  const TreeFile* manifest = package.tree_.find(kManifestName);
  package.plain_checkpoint_ = manifest == nullptr;
  if (manifest != nullptr) {
    package.manifest_ =
        parse_manifest(package.tree_.read(*manifest, kMaxManifestBytes), kManifestName);
    package.check_plugin_files();
  }
  package.check_official_files(options.official_sha256);
  package.tensors_ = package.plain_checkpoint_ ? TensorStore::open_checkpoint(package.tree_)
                                               : TensorStore::open_package(package.tree_);
  if (package.tensors_.files().empty()) {
    throw UsageError("no_weights",
                     dir + " holds no weights*.safetensors beside " + std::string(kManifestName));
  }
  package.collect_warnings();
  return package;
}

void Package::check_plugin_files() const {
  std::vector<std::string> wanted = manifest_.plugin.sources;
  if (!manifest_.plugin.library.empty()) wanted.push_back(manifest_.plugin.library);
  for (const std::string& path : wanted) {
    if (tree_.find(path) == nullptr) {
      throw UsageError("plugin_file_missing", std::string(kManifestName) + " names \"" +
                                                  printable(path) +
                                                  "\", which the package does not hold");
    }
  }
}

void Package::check_official_files(const std::map<std::string, std::string>& official) const {
  for (const char* name : kOfficialNames) {
    const TreeFile* file = tree_.find(name);
    const auto expected = official.find(name);
    if (file == nullptr || expected == official.end()) continue;
    if (tree_.hash_file(*file) != expected->second) {
      throw UsageError("unofficial_file", std::string(name) +
                                              " differs from the source model's; copy the official "
                                              "file or leave it out");
    }
  }
}

void Package::collect_warnings() {
  warnings_ = tensors_.warnings();
  const std::set<std::string> read(tensors_.files().begin(), tensors_.files().end());
  for (const TreeFile& file : tree_.files()) {
    if (file.path.ends_with(".safetensors") && read.count(file.path) == 0) {
      warnings_.push_back(file.path + " is not read: it counts as bytes and nothing uses it");
    }
    if (file.links > 1) {
      warnings_.push_back(file.path + " has " + std::to_string(file.links) +
                          " hard links; each path counts in full");
    }
    if (file.allocated + 4096 < file.size) {
      warnings_.push_back(file.path + " has holes: its size counts, not its blocks");
    }
  }
}

std::string Package::hash() {
  tree_.hash_files();
  return tree_.hash();
}

std::map<std::string, std::string> official_hashes(const std::string& checkpoint_dir) {
  std::map<std::string, std::string> out;
  for (const char* name : kOfficialNames) {
    const std::string path = checkpoint_dir + "/" + name;
    if (std::filesystem::exists(path)) out.emplace(name, sha256_file(path));
  }
  return out;
}

}  // namespace cbench
