// The bench's report as JSON and as a table.
#include <cstdio>

#include "runtime/bench.h"
#include "util/json.h"
#include "util/units.h"

namespace cbench {
namespace {

Json samples_json(const Samples& samples) {
  return {{"median", samples.median()},
          {"low", samples.low()},
          {"high", samples.high()},
          {"values", samples.values}};
}

Json ops_json(const std::map<std::string, OpTime>& ops) {
  Json out = Json::object();
  for (const auto& [name, time] : ops) {
    out[name] = {{"calls", time.calls}, {"seconds", time.seconds}};
  }
  return out;
}

template <typename... Values>
std::string format(const char* text, Values... values) {
  char buffer[256];
  std::snprintf(buffer, sizeof(buffer), text, values...);
  return buffer;
}

std::string line(const char* name, const Samples& samples, double unit, const char* suffix) {
  return format("%-34s %10.2f %10.2f %10.2f  %s\n", name, samples.median() / unit,
                samples.low() / unit, samples.high() / unit, suffix);
}

std::string ops_table(const char* title, const std::map<std::string, OpTime>& ops) {
  double total = 0;
  for (const auto& [name, time] : ops) total += time.seconds;
  std::string out = format("\n%-16s %8s %12s %8s\n", title, "calls", "ms", "share");
  for (const auto& [name, time] : ops) {
    out += format("%-16s %8lld %12.3f %7.1f%%\n", name.c_str(), static_cast<long long>(time.calls),
                  time.seconds * 1e3, 100 * time.seconds / total);
  }
  return out;
}

}  // namespace

std::string bench_json(const BenchReport& report) {
  Json bytes = Json::object();
  for (int i = 0; i < kCategories; ++i) {
    const double value = report.step_bytes[static_cast<size_t>(i)];
    if (value > 0) bytes[category_name(static_cast<Category>(i))] = value;
  }
  const BenchOptions& options = report.options;
  return dump_json(
      {{"schema", "cbench.bench.v1"},
       {"device", report.device},
       {"model", report.model},
       {"parameters", report.parameters},
       {"blocks", report.blocks},
       {"of_blocks", report.of_blocks},
       {"streamed_bytes", report.streamed},
       {"options",
        {{"tokens", options.tokens},
         {"sequence", options.sequence},
         {"decode", options.decode},
         {"context", options.context},
         {"repetitions", options.repetitions}}},
       {"ceilings",
        {{"gemm_flops_per_second", samples_json(report.gemm_rate)},
         {"read_bytes_per_second", samples_json(report.read_rate)},
         {"copy_bytes_per_second", samples_json(report.copy_rate)}}},
       {"prefill",
        {{"tokens_per_second", samples_json(report.prefill)},
         {"gemm_flops", report.forward_flops},
         {"share_of_gemm", samples_json(report.gemm_share)}}},
       {"scoring",
        {{"tokens_per_second", samples_json(report.scoring)}, {"head_flops", report.head_flops}}},
       {"decode",
        {{"tokens_per_second", samples_json(report.decode)},
         {"bytes_per_token", bytes},
         {"share_of_read", samples_json(report.read_share)},
         {"token_hash", format("%016llx", static_cast<unsigned long long>(report.token_hash))}}},
       {"profile",
        {{"prefill", ops_json(report.prefill_ops)}, {"decode", ops_json(report.decode_ops)}}}},
      1);
}

std::string bench_table(const BenchReport& report) {
  const BenchOptions& options = report.options;
  std::string out = format("%s, %lld parameters, on %s\n", report.model.c_str(),
                           static_cast<long long>(report.parameters), report.device.c_str());
  if (report.blocks < report.of_blocks) {
    out += format("A PART OF THE MODEL: its first %lld of %lld blocks\n",
                  static_cast<long long>(report.blocks), static_cast<long long>(report.of_blocks));
  }
  if (report.streamed > 0) {
    out += format_size(report.streamed) + " of weights stream from host memory\n";
  }
  out +=
      format("prefill %lld tokens in sequences of %lld, decode %lld after %lld; %lld repetitions\n",
             static_cast<long long>(options.tokens), static_cast<long long>(options.sequence),
             static_cast<long long>(options.decode), static_cast<long long>(options.context),
             static_cast<long long>(options.repetitions));
  out += format("\n%-34s %10s %10s %10s\n", "", "median", "low", "high");
  out += line("ceiling: GEMM at these shapes", report.gemm_rate, 1e9, "GFLOP/s");
  out += line("ceiling: read", report.read_rate, 1e9, "GB/s");
  out += line("ceiling: copy (read + write)", report.copy_rate, 1e9, "GB/s");
  out += line("prefill", report.prefill, 1, "tokens/s");
  out += line("  share of the GEMM ceiling", report.gemm_share, 0.01, "%");
  out += line("scoring (every row's logits)", report.scoring, 1, "tokens/s");
  out += line("decode", report.decode, 1, "tokens/s");
  out += line("  share of the read ceiling", report.read_share, 0.01, "%");
  out +=
      "\nread per generated token: " + format_size(static_cast<int64_t>(report.bytes_per_token())) +
      " (";
  const char* separator = "";
  for (int i = 0; i < kCategories; ++i) {
    const auto value = static_cast<int64_t>(report.step_bytes[static_cast<size_t>(i)]);
    if (value == 0) continue;
    out +=
        separator + std::string(category_name(static_cast<Category>(i))) + " " + format_size(value);
    separator = ", ";
  }
  out += ")\n" + ops_table("prefill op", report.prefill_ops);
  out += ops_table("decode op", report.decode_ops);
  return out;
}

}  // namespace cbench
