// Names of routed experts' matrices. A layer's experts have two stacked matrices with canonical
// names, `<prefix>experts.gate_up_proj` (or `up_proj` where nothing is gated) and
// `<prefix>experts.down_proj`. A checkpoint stores each as one tensor [experts, rows, cols] of that
// name, or as `<prefix>experts.<e>.<part>.weight` [rows of the part, cols] for every expert e.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace cbench {

/// The parts of a stacked matrix in its rows' order: gate_proj and up_proj for gate_up_proj, else
/// the last word of the name itself.
std::vector<std::string> expert_parts(std::string_view stacked);

/// Name of one expert's part: "a.experts.7.up_proj.weight".
std::string expert_tensor(std::string_view stacked, int64_t expert, std::string_view part);

/// Whether a rank-3 tensor of this name is a stacked matrix of experts.
bool is_stacked_name(std::string_view name);

/// A tensor name taken apart: "a.experts." + 7 + "up_proj".
struct ExpertTensorName {
  std::string prefix;
  int64_t expert = 0;
  std::string part;
};
std::optional<ExpertTensorName> parse_expert_tensor(std::string_view name);

}  // namespace cbench
