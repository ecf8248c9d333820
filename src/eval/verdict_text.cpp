// The verdict for people (a table) and for CI (JUnit XML).
#include <cmath>
#include <cstdarg>
#include <cstdio>

#include "eval/verdict.h"
#include "util/markup.h"
#include "util/text.h"
#include "util/units.h"

namespace cbench {
namespace {

std::string format(const char* pattern, ...) __attribute__((format(printf, 1, 2)));
std::string format(const char* pattern, ...) {
  std::array<char, 512> buffer;
  va_list args;
  va_start(args, pattern);
  std::vsnprintf(buffer.data(), buffer.size(), pattern, args);
  va_end(args);
  return buffer.data();
}

void line(std::string& out, const char* label, const std::string& value) {
  out += format("  %-18s %s\n", label, value.c_str());
}

std::string of_limit(int64_t bytes, int64_t limit) {
  if (bytes < 0) return "not measured";
  return format_size(bytes) + " of " + format_size(limit) +
         (bytes > limit ? "  OVER by " + format_size(bytes - limit) : "");
}

void add_accuracy(std::string& out, const AccuracyResult& accuracy) {
  for (const BenchmarkResult& b : accuracy.benchmarks) {
    std::string value =
        format("%lld / %lld", static_cast<long long>(b.right), static_cast<long long>(b.total));
    if (b.reference_total > 0) {
      value += format("   (BF16 %lld / %lld)", static_cast<long long>(b.reference_right),
                      static_cast<long long>(b.reference_total));
    }
    line(out, b.name.c_str(), value);
  }
  line(out, "accuracy mean",
       format("%.2f %%   (BF16 %.2f %%)  %s", 100 * accuracy.mean(),
              100 * accuracy.reference_mean(), accuracy.gate ? "ok" : "BELOW THE GATE"));
}

std::string xml(std::string_view text) { return escape_markup(printable(text, 4000)); }

}  // namespace

std::string verdict_table(const Verdict& v) {
  std::string out = v.task + ": " + status_name(v.status);
  if (v.reward) out += format(", %s %.4f", v.mode == Mode::kCheck ? "10 F =" : "reward", *v.reward);
  out += "\n";
  for (const Reason& reason : v.reasons) out += "  ! " + reason.code + ": " + reason.message + "\n";
  if (v.likelihood) {
    const LikelihoodResult& l = *v.likelihood;
    line(out, "perplexity", format("%.6f   (BF16 %.6f)", l.ppl, l.reference_ppl));
    line(out, "F",
         format("%.6f   95 %% [%.6f, %.6f]", l.f, std::exp(l.interval.low),
                std::exp(l.interval.high)));
  }
  if (v.accuracy) add_accuracy(out, *v.accuracy);
  line(out, "package", of_limit(v.storage.package_bytes, v.storage.limit));
  if (v.storage.resident_after_load >= 0) {
    line(out, "resident, loaded", of_limit(v.storage.resident_after_load, v.storage.limit));
    line(out, "resident, used", of_limit(v.storage.resident_after_inference, v.storage.limit));
  }
  if (v.decode) {
    std::string speed = format("%.1f tokens/s", v.decode->tokens_per_second);
    if (v.reference_tokens_per_second > 0) {
      speed += format("   (BF16 %.1f)", v.reference_tokens_per_second);
    }
    line(out, "decode", speed);
  }
  if (v.energy) {
    const auto joules = [](const EnergyUse& use) {
      return format("%.3f J", use.per_token()) + (use.long_enough() ? "" : " (window under 5 s)");
    };
    line(out, "energy",
         joules(v.energy->decode) + " per decoded token, " + joules(v.energy->scoring) +
             " per scored token, idle " + format("%.0f W", v.energy->idle_watts));
  }
  if (v.audit) {
    line(out, "causality",
         v.audit->passed ? format("ok (stepwise excess %.1e nats)", v.audit->stepwise_excess)
                         : v.audit->reason);
  }
  std::string stages;
  for (const StageRecord& stage : v.stages) {
    stages += stages.empty() ? "" : ", ";
    stages +=
        stage.name + " " + (stage.status == "ok" ? format("%.1f s", stage.seconds) : stage.status);
  }
  line(out, "stages", stages + format("; %.1f s in all", v.seconds));
  return out;
}

std::string verdict_junit(const Verdict& v) {
  int failures = 0;
  int skipped = 0;
  std::string cases;
  const auto add = [&](const std::string& name, double seconds, const std::string& body) {
    cases += format("    <testcase classname=\"%s\" name=\"%s\" time=\"%.3f\">",
                    xml(v.task).c_str(), xml(name).c_str(), seconds) +
             body + "</testcase>\n";
  };
  for (const StageRecord& stage : v.stages) {
    std::string body;
    if (stage.status == "not_run") {
      ++skipped;
      body = "<skipped message=\"" + xml(stage.reason) + "\"/>";
    } else if (stage.status == "failed") {
      ++failures;
      body = "<failure message=\"" + xml(stage.reason) + "\"/>";
    }
    add("stage " + stage.name, stage.seconds, body);
  }
  std::string body;
  if (v.status != Status::kScored) {
    ++failures;
    for (const Reason& r : v.reasons) {
      body += "<failure type=\"" + xml(r.code) + "\" message=\"" + xml(r.message) + "\"/>";
    }
  }
  add("verdict", 0, body);
  return format(
             "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites>\n  <testsuite "
             "name=\"cbench\" "
             "tests=\"%zu\" failures=\"%d\" skipped=\"%d\" time=\"%.3f\">\n",
             v.stages.size() + 1, failures, skipped, v.seconds) +
         cases + "  </testsuite>\n</testsuites>\n";
}

}  // namespace cbench
