#include "package/expert_tensors.h"

#include <charconv>

namespace cbench {
namespace {

constexpr std::string_view kExperts = "experts.";
constexpr std::string_view kWeight = ".weight";

std::string_view last_word(std::string_view name) { return name.substr(name.rfind('.') + 1); }

bool is_part(std::string_view word) {
  return word == "gate_proj" || word == "up_proj" || word == "down_proj";
}

/// Behind "experts." at the name's start or behind a dot; npos if it has none.
size_t behind_experts(std::string_view name) {
  const size_t at = name.rfind(kExperts);
  if (at == name.npos || (at > 0 && name[at - 1] != '.')) return name.npos;
  return at + kExperts.size();
}

}  // namespace

std::vector<std::string> expert_parts(std::string_view stacked) {
  const std::string_view word = last_word(stacked);
  if (word == "gate_up_proj") return {"gate_proj", "up_proj"};
  return {std::string(word)};
}

std::string expert_tensor(std::string_view stacked, int64_t expert, std::string_view part) {
  const std::string prefix(stacked.substr(0, stacked.rfind('.') + 1));
  return prefix + std::to_string(expert) + "." + std::string(part) + std::string(kWeight);
}

bool is_stacked_name(std::string_view name) {
  const size_t word = behind_experts(name);
  if (word == name.npos) return false;
  const std::string_view part = name.substr(word);
  return part == "gate_up_proj" || part == "up_proj" || part == "down_proj";
}

std::optional<ExpertTensorName> parse_expert_tensor(std::string_view name) {
  const size_t number = behind_experts(name);
  if (number == name.npos || !name.ends_with(kWeight)) return std::nullopt;
  const std::string_view rest = name.substr(number, name.size() - number - kWeight.size());
  const size_t dot = rest.find('.');
  if (dot == rest.npos || !is_part(rest.substr(dot + 1))) return std::nullopt;
  ExpertTensorName out;
  const auto [end, error] = std::from_chars(rest.data(), rest.data() + dot, out.expert);
  const bool canonical = dot == 1 || rest[0] != '0';
  if (error != std::errc() || end != rest.data() + dot || out.expert < 0 || !canonical) {
    return std::nullopt;
  }
  out.prefix = name.substr(0, number);
  out.part = rest.substr(dot + 1);
  return out;
}

}  // namespace cbench
