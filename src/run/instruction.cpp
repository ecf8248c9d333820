#include "run/instruction.h"

#include <array>
#include <ctime>
#include <map>

#include "util/error.h"
#include "util/units.h"

namespace cbench {
namespace {

std::string deadline_text(double seconds) {
  const std::time_t at = std::time(nullptr) + static_cast<std::time_t>(seconds);
  std::tm parts{};
  ::gmtime_r(&at, &parts);
  std::array<char, 64> text;
  std::strftime(text.data(), text.size(), "%Y-%m-%d %H:%M", &parts);
  return text.data();
}

std::string benchmarks_text(const AccuracyProtocol& accuracy) {
  std::string out;
  for (const BenchmarkProtocol& benchmark : accuracy.benchmarks) {
    out += (out.empty() ? "" : ", ") + std::to_string(benchmark.items) + " hidden items of " +
           benchmark.name;
  }
  return out;
}

std::string percent(int64_t numerator, int64_t denominator) {
  std::array<char, 32> text;
  std::snprintf(text.data(), text.size(), "%.4g %%",
                100.0 * static_cast<double>(numerator) / static_cast<double>(denominator));
  return text.data();
}

std::map<std::string, std::string, std::less<>> values(const Contract& contract,
                                                       const AgentPlaces& places, double budget) {
  const HardwareSpec& hardware = contract.hardware;
  return {
      {"task", contract.name},
      {"model", contract.model.name},
      {"parameters", std::to_string(contract.model.parameters)},
      {"architecture", contract.model.architecture},
      {"limit", format_size(contract.limit)},
      {"limit_bytes", std::to_string(contract.limit)},
      {"hours", format_duration(budget)},
      {"deadline", deadline_text(budget)},
      {"hardware", hardware.device == "cpu" ? "the CPU" : hardware.gpu},
      {"benchmarks", benchmarks_text(contract.accuracy)},
      {"retain", percent(contract.accuracy.retain_numerator, contract.accuracy.retain_denominator)},
      {"model_dir", places.model},
      {"data_dir", places.data},
      {"work_dir", places.work},
      {"submission_dir", places.submission},
      {"header", places.header}};
}

}  // namespace

std::string render_instruction(const Contract& contract, const AgentPlaces& places,
                               double budget_seconds) {
  const auto filled = values(contract, places, budget_seconds);
  const std::string_view text = instruction_template();
  std::string out;
  size_t at = 0;
  while (true) {
    const size_t open = text.find("{{", at);
    out += text.substr(at, open - at);
    if (open == std::string_view::npos) return out;
    const size_t close = text.find("}}", open);
    const std::string_view name = text.substr(open + 2, close - open - 2);
    const auto value = filled.find(name);
    if (close == std::string_view::npos || value == filled.end()) {
      throw InvalidError("internal", "instruction.md: nothing fills " + std::string(name));
    }
    out += value->second;
    at = close + 2;
  }
}

}  // namespace cbench
