// The evaluator bench as a table and as JSON.
#include <algorithm>
#include <array>
#include <cstdarg>
#include <cstdio>

#include "eval/evaluator_bench.h"
#include "util/json.h"
#include "util/units.h"

namespace cbench {
namespace {

void line(std::string& out, const char* label, const char* pattern, ...)
    __attribute__((format(printf, 3, 4)));
void line(std::string& out, const char* label, const char* pattern, ...) {
  std::array<char, 256> buffer;
  va_list args;
  va_start(args, pattern);
  std::vsnprintf(buffer.data(), buffer.size(), pattern, args);
  va_end(args);
  std::array<char, 64> padded;
  std::snprintf(padded.data(), padded.size(), "%-34s", label);
  out += std::string(padded.data()) + buffer.data() + "\n";
}

Json memory_json(const EngineMemory& m) {
  Json json = {{"declared", m.arena.model_storage()}, {"arena", m.arena.live_total()},
               {"padding", m.arena.padding},          {"host", m.outside},
               {"host_baseline", m.baseline},         {"unexplained", m.unexplained()}};
  if (m.device) {
    json["device"] = {{"engine", m.device->engine},
                      {"others", m.device->others},
                      {"used", m.device->used},
                      {"engine_baseline", m.device_baseline.engine},
                      {"others_baseline", m.device_baseline.others},
                      {"used_baseline", m.device_baseline.used}};
  }
  return json;
}

void memory_line(std::string& out, const char* label, const EngineMemory& m) {
  std::string text = format_size(m.arena.model_storage()) + " declared";
  if (m.device) {
    text += "; device grew by " + format_size(m.device->engine - m.device_baseline.engine) +
            " for an arena of " + format_size(m.arena.live_total()) + " (+ " +
            format_size(m.arena.padding) + " rounding); owned by nobody " +
            format_size(m.device->unowned() - m.device_baseline.unowned());
  }
  text += "; host grew by " + format_size(m.outside - m.baseline) + "; unexplained " +
          format_size(m.unexplained());
  out += std::string(label) + ": " + text + "\n";
}

}  // namespace

std::string evaluator_bench_table(const EvaluatorBenchReport& r) {
  const EvaluatorBenchOptions& o = r.options;
  std::string out = "evaluator on " + r.device + ", box " + r.box + ", logits in " + r.logits +
                    " memory, " +
                    (o.package.empty() ? "synthetic weights\n" : "weights of " + o.package + "\n");
  line(out, "engine start to ready", "%.2f s", r.load_seconds);
  line(out, "first token after that", "%.3f s", r.first_token_seconds);
  line(out, "scoring", "%lld x %lld tokens in %.2f s: %.0f tok/s", static_cast<long long>(o.blocks),
       static_cast<long long>(o.context + o.continuation), r.scoring_seconds, r.scoring_rate);
  if (r.direct_rate > 0) {
    line(out, "  its products, head, attention", "%.1f TFLOP/s = %.1f %% of sustained GEMM %.1f",
         r.scoring_flops / 1e12, 100 * r.scoring_flops / r.gemm_rate, r.gemm_rate / 1e12);
    line(out, "  without the process border", "%.0f tok/s: the border costs %.2f %%", r.direct_rate,
         100 * r.border());
  }
  line(out, "answers", "%lld items, %lld tokens in %.2f s", static_cast<long long>(o.items),
       static_cast<long long>(r.generated), r.generation_seconds);
  line(out, "decode", "%.2f tok/s (rounds %.4f to %.4f s), first token %.3f s",
       r.decode.tokens_per_second,
       *std::min_element(r.decode.round_seconds.begin(), r.decode.round_seconds.end()),
       *std::max_element(r.decode.round_seconds.begin(), r.decode.round_seconds.end()),
       r.decode.prefill_seconds);
  line(out, "  agreement with scoring", "%.4f, mean gap %.2e", r.decode.agreement,
       r.decode.mean_gap);
  line(out, "  stage", "%.2f s", r.decode_seconds);
  line(out, "audit", "%.2f s with a fresh engine, stepwise excess %.1e, suffix %.1e nats",
       r.audit_seconds, r.audit.stepwise_excess, r.audit.suffix_max);
  line(out, "engine start to end", "%.1f s", r.total_seconds);
  if (r.scoring_energy.tokens > 0) {
    line(out, "energy", "%.2f J per decoded token (%.1f s), %.4f J per scored token (%.1f s)",
         r.decode.energy.per_token(), r.decode.energy.seconds, r.scoring_energy.per_token(),
         r.scoring_energy.seconds);
    line(out, "idle power", "%.0f W", r.idle_watts);
  }
  memory_line(out, "memory after load", r.after_load);
  memory_line(out, "memory after use and trim", r.after_use);
  return out;
}

std::string evaluator_bench_json(const EvaluatorBenchReport& r) {
  const auto energy = [](const EnergyUse& use) {
    return Json{{"joules", use.joules}, {"seconds", use.seconds}, {"tokens", use.tokens}};
  };
  return dump_json({{"schema", "cbench.bench_evaluator.v1"},
                    {"device", r.device},
                    {"box", r.box},
                    {"logits", r.logits},
                    {"blocks", r.options.blocks},
                    {"block_tokens", r.options.context + r.options.continuation},
                    {"load_seconds", r.load_seconds},
                    {"first_token_seconds", r.first_token_seconds},
                    {"scoring_seconds", r.scoring_seconds},
                    {"scoring_tokens_per_second", r.scoring_rate},
                    {"direct_tokens_per_second", r.direct_rate},
                    {"scoring_flops", r.scoring_flops},
                    {"gemm_flops", r.gemm_rate},
                    {"border", r.border()},
                    {"items", r.options.items},
                    {"generated_tokens", r.generated},
                    {"generation_seconds", r.generation_seconds},
                    {"decode_tokens_per_second", r.decode.tokens_per_second},
                    {"decode_round_seconds", r.decode.round_seconds},
                    {"decode_seconds", r.decode_seconds},
                    {"audit_seconds", r.audit_seconds},
                    {"total_seconds", r.total_seconds},
                    {"idle_watts", r.idle_watts},
                    {"scoring_energy", energy(r.scoring_energy)},
                    {"decode_energy", energy(r.decode.energy)},
                    {"memory_after_load", memory_json(r.after_load)},
                    {"memory_after_use", memory_json(r.after_use)}},
                   2) +
         "\n";
}

}  // namespace cbench
