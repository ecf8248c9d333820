// A package: an untrusted submission directory, opened and checked without executing anything.
#pragma once

#include <map>
#include <string>

#include "package/manifest.h"
#include "package/safetensors.h"
#include "package/tree.h"

namespace cbench {

struct PackageOptions {
  TreeLimits limits;
  /// SHA-256 of the source model's own files, by name (tokenizer.json, tokenizer_config.json,
  /// config.json, generation_config.json): a package that holds one must hold it byte for byte.
  std::map<std::string, std::string> official_sha256;
};

/// Everything readable has been validated when open() returns. A plain checkpoint directory
/// (config.json and safetensors, no cbench.json) opens as a package with an empty manifest: it is
/// how the BF16 reference is measured.
class Package {
 public:
  /// Throws UsageError with the codes of PackageTree, parse_manifest and TensorStore, and
  /// plugin_file_missing, unofficial_file, no_weights.
  static Package open(const std::string& dir, const PackageOptions& options = {});

  const PackageTree& tree() const { return tree_; }
  const Manifest& manifest() const { return manifest_; }
  const TensorStore& tensors() const { return tensors_; }
  bool plain_checkpoint() const { return plain_checkpoint_; }
  /// Oddities that are reported and not refused.
  const std::vector<std::string>& warnings() const { return warnings_; }
  /// The package hash (PackageTree::hash); reads every file on the first call.
  std::string hash();

 private:
  void check_plugin_files() const;
  void check_official_files(const std::map<std::string, std::string>& official) const;
  void collect_warnings();

  PackageTree tree_;
  Manifest manifest_;
  TensorStore tensors_;
  bool plain_checkpoint_ = false;
  std::vector<std::string> warnings_;
};

/// The hashes that PackageOptions wants, from a trusted checkpoint directory.
std::map<std::string, std::string> official_hashes(const std::string& checkpoint_dir);

}  // namespace cbench
