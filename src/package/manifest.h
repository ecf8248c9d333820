// cbench.json: how a package stores its matrices and how its graph differs from the source model's.
// Strict: unknown keys, wrong types and values out of bounds are refused (docs/package.md).
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace cbench {

inline constexpr std::string_view kManifestName = "cbench.json";
inline constexpr uint64_t kMaxManifestBytes = 16u << 20;

/// The inference code: sources that the harness compiles, or a library; neither = everything BF16.
struct PluginFiles {
  std::vector<std::string> sources;  ///< relative, inside the package
  std::string library;               ///< relative, ends in .so

  bool present() const { return !sources.empty() || !library.empty(); }
};

/// Declared pruning. Layer numbers and expert ids are the source model's.
struct GraphOverrides {
  std::optional<std::vector<int>> layers;   ///< kept layers, strictly increasing; nothing = all
  std::map<int, int64_t> mlp_width;         ///< layer -> width of its MLP
  std::map<int, std::vector<int>> experts;  ///< layer -> kept experts, strictly increasing
  /// matrix -> rank: W = A[rows, rank] B[rank, cols], stored as `<name>.A` and `<name>.B`
  std::map<std::string, int64_t, std::less<>> low_rank;

  bool empty() const { return !layers && mlp_width.empty() && experts.empty() && low_rank.empty(); }
};

struct Manifest {
  std::string task;  ///< "" when not stated
  PluginFiles plugin;
  std::map<std::string, std::string, std::less<>> formats;   ///< name -> parameters, JSON text
  std::map<std::string, std::string, std::less<>> matrices;  ///< matrix -> name of its format
  GraphOverrides graph;

  /// Parameters of the matrix's format, or null: stored as BF16 under its own name.
  const std::string* parameters_of(std::string_view matrix) const;
};

/// Parses a manifest; `source` names it in errors. Throws UsageError: json, duplicate_key,
/// too_deep, too_large, unknown_key, json_type, json_missing, format_version, bad_path,
/// unknown_format, plugin_missing, out_of_range, not_increasing, conflict.
Manifest parse_manifest(std::string_view bytes, std::string_view source);

}  // namespace cbench
