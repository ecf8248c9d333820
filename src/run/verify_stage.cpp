#include "run/verify_stage.h"

#include <array>
#include <cerrno>
#include <cmath>

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include "eval/task_data.h"
#include "util/clock.h"
#include "util/error.h"
#include "util/file.h"
#include "util/hash.h"
#include "util/json.h"
#include "util/process.h"
#include "util/text.h"

namespace cbench {
namespace {

constexpr uint64_t kMaxVerdict = 64u << 20;
constexpr size_t kLogShown = 300;

Fd create_file(const std::string& path) {
  Fd fd(::open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0644));
  if (!fd.valid()) throw_errno("create", path);
  return fd;
}

/// The end of a log, on one line.
std::string last_words(const std::string& log) {
  std::string text;
  try {
    text = read_file(log, kMaxVerdict);
  } catch (const Error&) {
    return "";
  }
  while (!text.empty() && text.back() == '\n') text.pop_back();
  if (text.size() > kLogShown) text.erase(0, text.size() - kLogShown);
  return text.empty() ? "" : "; its last words: " + printable(text, kLogShown + 20);
}

struct Ending {
  std::string why;  ///< "exited", "timeout", "interrupted"
  ExitStatus status;
};

Ending wait_for(Process& process, const VerifyStage& stage) {
  const double deadline = boot_seconds() + stage.timeout;
  while (true) {
    std::array<pollfd, 2> polls{{{process.pidfd(), POLLIN, 0}, {stage.interrupt_fd, POLLIN, 0}}};
    if (::poll(polls.data(), polls.size(), 1000) < 0 && errno != EINTR)
      throw_errno("poll", "verify");
    if (polls[0].revents != 0) return {"exited", *process.wait(-1)};
    if (polls[1].revents != 0) return {"interrupted", process.stop(0)};
    if (boot_seconds() >= deadline) return {"timeout", process.stop(0)};
    if (stage.tick) stage.tick();
  }
}

/// The process's own error object, as a reason; nothing when there is none.
std::optional<std::pair<std::string, std::string>> error_object(const Json& json) {
  if (!json.is_object() || !json.contains("error") || !json["error"].is_object()) return {};
  return std::make_pair(json_string(json["error"], "code", "error"),
                        json_string(json["error"], "message", "error"));
}

VerifyResult judge_output(const std::string& output, const VerifyTarget& target,
                          const Contract& contract) {
  const Json json = parse_json(output, "the verdict");
  const auto invalid = [&](const std::string& code, const std::string& message) {
    return verdict_without_measurement(contract, false, code, message, target.package_hash);
  };
  if (const auto error = error_object(json)) return invalid(error->first, error->second);
  if (json_string(json, "schema", "the verdict") != "cbench.verdict.v1") {
    return invalid("verify_output", "the verifier printed something else than a verdict");
  }
  if (json_string(json, "contract_sha256", "the verdict") != contract.sha256) {
    return invalid("contract_changed", "the task's contract is no longer the run's frozen copy");
  }
  VerifyResult result{output, json_string(json, "status", "the verdict"), std::nullopt};
  const Json& reward = json_member(json, "reward", "the verdict");
  if (reward.is_number() && std::isfinite(reward.get<double>()))
    result.reward = reward.get<double>();
  const bool known =
      result.status == "scored" || result.status == "gate_failed" || result.status == "invalid";
  if (!known || (result.status == "scored" && !result.reward)) {
    return invalid("verify_output", "the verdict has no status that fits its reward");
  }
  const std::string hash =
      json_string(json_member(json, "package", "the verdict"), "sha256", "the verdict");
  if (!hash.empty() && hash != target.package_hash) {
    return invalid("wrong_package", "the verifier measured another package than this version");
  }
  return result;
}

}  // namespace

VerifyResult run_verify(const VerifyStage& stage, const VerifyTarget& target, const RunDir& run,
                        const Contract& contract) {
  const std::string base = run.verdicts() + "/" + target.name;
  const std::string output_path = base + ".out", log_path = base + ".log";
  const Fd output = create_file(output_path), log = create_file(log_path);
  ProcessOptions options;
  options.argv = stage.command;
  options.argv.insert(options.argv.end(), {target.path, "--json"});
  if (!stage.box.empty()) options.argv.insert(options.argv.end(), {"--box", stage.box});
  options.inherit_env = true;
  options.stdout_fd = output.get();
  options.stderr_fd = log.get();
  Process process(options);
  const Ending ending = wait_for(process, stage);
  if (ending.why == "interrupted") return {};
  VerifyResult result;
  if (ending.why == "timeout") {
    result = verdict_without_measurement(contract, false, "verify_timeout",
                                         "no verdict within " +
                                             std::to_string(static_cast<int64_t>(stage.timeout)) +
                                             " s" + last_words(log_path),
                                         target.package_hash);
  } else {
    try {
      result = judge_output(read_file(output_path, kMaxVerdict), target, contract);
    } catch (const Error& error) {
      result = verdict_without_measurement(contract, false, "verify_failed",
                                           "the verifier ended with " + ending.status.text() +
                                               " and no verdict (" + printable(error.what()) + ")" +
                                               last_words(log_path),
                                           target.package_hash);
    }
  }
  ::unlink(output_path.c_str());
  return result;
}

VerifyResult verdict_without_measurement(const Contract& contract, bool refused,
                                         const std::string& code, const std::string& message,
                                         const std::string& package_hash) {
  Verdict verdict;
  verdict.status = refused ? Status::kGateFailed : Status::kInvalid;
  if (refused) verdict.reward = 0;
  verdict.reasons.push_back({code, message});
  verdict.task = contract.name;
  verdict.contract_sha256 = contract.sha256;
  verdict.package_sha256 = package_hash;
  verdict.started_utc = utc_now();
  verdict.parameters = contract.model.parameters;
  verdict.storage.limit = contract.limit;
  return {verdict_json(verdict), status_name(verdict.status), verdict.reward};
}

std::string verdict_key(const Contract& contract, const std::string& package_hash) {
  std::string reference;
  try {
    reference = sha256_file(reference_dir(contract, Mode::kVerify) + "/reference.json");
  } catch (const Error&) {
    reference = "none";
  }
  return sha256_hex(package_hash + "\n" + contract.sha256 + "\n" CBENCH_VERSION "\n" + reference);
}

}  // namespace cbench
