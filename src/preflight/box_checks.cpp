// The boxes: whether they start, whether they hold, what runs in them, and what dead runs left.
#include <filesystem>

#include "box/isolation.h"
#include "eval/grading/program.h"
#include "preflight/checks.h"
#include "run/agent_box.h"
#include "run/run_dir.h"
#include "run/state.h"
#include "util/error.h"
#include "util/json.h"
#include "util/text.h"
#include "util/units.h"

namespace cbench {
namespace {

namespace fs = std::filesystem;

/// A GPU task's image holds a CUDA toolkit.
constexpr int64_t kDockerRoot = int64_t{60} << 30, kSmallDockerRoot = int64_t{2} << 30;
constexpr int kMaxRuns = 500;

RunResult docker(const PreflightOptions& options, const std::vector<std::string>& arguments,
                 double seconds) {
  ProcessOptions process;
  process.argv = {options.docker};
  process.argv.insert(process.argv.end(), arguments.begin(), arguments.end());
  process.inherit_env = true;
  return run_process(process, seconds);
}

void check_docker_root(const Json& info, int64_t needed, CheckLines& lines) {
  const std::string root = info.value("DockerRootDir", "");
  std::error_code error;
  if (root.empty() || !fs::is_directory(root, error)) {
    return lines.warn("docker.disk",
                      "docker's directory " + printable(root) + " cannot be seen from here",
                      "make sure that " + format_size(needed) + " are free there");
  }
  const int64_t free = free_bytes(root);
  const std::string seen = format_size(free) + " free in " + root;
  if (free >= needed) return lines.ok("docker.disk", seen);
  lines.fail("docker.disk", seen,
             "make room (docker system prune): " + format_size(needed) + " are needed");
}

/// The engine and `cbench check` run in the image: it must hold the libraries they are linked with.
void check_program(const std::string& image, const PreflightOptions& options, CheckLines& lines) {
  const std::string program =
      options.program.empty() ? fs::read_symlink("/proc/self/exe").string() : options.program;
  const RunResult version =
      docker(options,
             {"run", "--rm", "--pull", "never", "--network", "none", "--mount",
              "type=bind,source=" + program + ",target=/cbench/cbench,readonly", "--entrypoint",
              "/cbench/cbench", image, "--version"},
             90);
  if (version.status.ok()) {
    const std::string line = version.out.substr(0, version.out.find('\n'));
    return lines.ok("docker.program", printable(line, 80) + " runs in it");
  }
  lines.fail("docker.program",
             "cbench does not run in " + image + ": " + printable(version.err, 200),
             "the image lacks a library of cbench's: scripts/box_image.py " + program);
}

/// The image by digest, and a container with the GPU.
void check_image(const Contract& contract, const PreflightOptions& options, CheckLines& lines) {
  const std::string image = contract.image.empty() ? box_image() : contract.image;
  const RunResult found = docker(options, {"image", "inspect", "--format", "{{.Id}}", image}, 30);
  if (!found.status.ok()) {
    return lines.fail("docker.image", image + " is not here",
                      "docker pull " + image + ", or make one: scripts/box_image.py");
  }
  if (image.find("@sha256:") == std::string::npos && !image.starts_with("sha256:")) {
    lines.warn("docker.image", image + " is named by a tag that can move",
               "name it by digest in the contract: image: NAME@sha256:...");
  } else {
    lines.ok("docker.image", image);
  }
  check_program(image, options, lines);
  if (!needs_cuda(contract, options)) return;
  const RunResult gpu = docker(options,
                               {"run", "--rm", "--pull", "never", "--network", "none", "--gpus",
                                "all", image, "nvidia-smi", "-L"},
                               90);
  if (gpu.status.ok() && gpu.out.find("GPU ") != std::string::npos) {
    return lines.ok("docker.gpu", printable(gpu.out.substr(0, gpu.out.find('\n'))));
  }
  lines.fail("docker.gpu", "a container with --gpus all sees no GPU: " + printable(gpu.err, 200),
             "install the NVIDIA container toolkit and restart docker");
}

bool finished(const RunDir& run) {
  try {
    return fold_journal(read_journal(run.journal())).stage == "done";
  } catch (const Error&) {
    return false;
  }
}

}  // namespace

void check_box(const PreflightOptions& options, CheckLines& lines) {
  const std::string kind(box_kind_name(options.box));
  try {
    require_box(options.box);
    lines.ok("box", kind);
  } catch (const EnvironmentError& error) {
    lines.fail("box", kind + ": " + error.what(), "enable it, or choose another box with --box");
  }
}

void check_isolation(const PreflightOptions& options, CheckLines& lines) {
  std::string held, broken;
  for (const IsolationCheck& check : isolation_report(options.box)) {
    std::string& list = check.isolated ? held : broken;
    list += (list.empty() ? "" : ", ") + check.name;
    if (!check.isolated && !check.detail.empty()) list += " (" + check.detail + ")";
  }
  if (broken.empty() && !held.empty()) return lines.ok("isolation", held);
  if (options.box == BoxKind::kDirect) {
    return lines.warn(
        "isolation", "none: --box direct",
        "only for submissions that you trust; its results are no verdicts for others");
  }
  lines.fail("isolation", "not isolated: " + broken, "see docs/boxes.md; do not run agents here");
}

void check_python(const PreflightOptions& options, CheckLines& lines) {
  ProgramOptions programs;
  programs.box = options.box;
  if (!options.python.empty()) programs.python = options.python;
  const Program program{"preflight", "def twice(x):\n", "    return 2 * x\n",
                        "def check(candidate):\n    assert candidate(21) == 42\n", "twice"};
  const std::vector<ProgramResult> results = run_programs({program}, programs);
  const ProgramResult& result = results.at(0);
  const std::string seen = programs.python + " in " + std::string(box_kind_name(options.box)) +
                           ": " + result.reason + " in " + format_duration(result.seconds);
  if (result.passed) return lines.ok("python", seen);
  lines.fail("python", seen, "install python3 where the box sees it (/usr/bin)");
}

void check_docker(const Contract& contract, const PreflightOptions& options, CheckLines& lines) {
  const RunResult result = docker(options, {"info", "--format", "{{json .}}"}, 30);
  Json info;
  try {
    info = parse_json(result.out, "docker info");
  } catch (const UsageError&) {
  }
  const std::string version =
      info.is_object() && info.contains("ServerVersion") && info["ServerVersion"].is_string()
          ? info["ServerVersion"].get<std::string>()
          : "";
  if (!result.status.ok() || version.empty()) {
    return lines.fail("docker", "the docker daemon does not answer: " + printable(result.err, 200),
                      "start it (systemctl start docker), and join the group docker");
  }
  lines.ok("docker", "server " + version);
  if (needs_cuda(contract, options)) {
    const bool nvidia = info.contains("Runtimes") && info["Runtimes"].contains("nvidia");
    if (nvidia) lines.ok("docker.runtime", "nvidia");
    if (!nvidia) {
      lines.fail("docker.runtime", "docker has no NVIDIA runtime",
                 "install the NVIDIA container toolkit: nvidia-ctk runtime configure");
    }
  }
  check_docker_root(info, needs_cuda(contract, options) ? kDockerRoot : kSmallDockerRoot, lines);
  check_image(contract, options, lines);
  const RunResult left = docker(options, {"ps", "-aq", "--filter", "label=cbench.run"}, 30);
  if (left.status.ok() && !left.out.empty()) {
    lines.warn("docker.left", "there are containers of cbench runs",
               "docker ps --filter label=cbench.run; docker rm -f those of dead runs");
  }
}

void check_leftovers(const PreflightOptions& options, CheckLines& lines) {
  int unfinished = 0, processes = 0, looked_at = 0;
  std::string example;
  std::error_code error;
  for (const auto& task : fs::directory_iterator(options.runs_dir, error)) {
    if (!task.is_directory() || task.is_symlink()) continue;
    for (const auto& entry : fs::directory_iterator(task.path(), error)) {
      const RunDir run{fs::absolute(entry.path()).string()};
      if (!fs::is_regular_file(run.journal()) || ++looked_at > kMaxRuns) continue;
      if (run_is_driven(run) || finished(run)) continue;
      ++unfinished;
      if (example.empty()) example = entry.path().string();
      if (unfinished <= 20) processes += static_cast<int>(marked_processes(run.id()).size());
    }
  }
  if (processes > 0) {
    return lines.fail("leftovers",
                      std::to_string(processes) + " processes of runs that nobody drives",
                      "cbench run --resume " + example + " ends them, or kill them");
  }
  if (unfinished > 0) {
    return lines.warn("leftovers",
                      std::to_string(unfinished) + " runs were not finished, as " + example,
                      "cbench run --resume continues one");
  }
  lines.ok("leftovers", "none below " + options.runs_dir);
}

}  // namespace cbench
