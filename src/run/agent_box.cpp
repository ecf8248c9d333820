#include "run/agent_box.h"

#include <array>
#include <charconv>
#include <cstring>
#include <filesystem>

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "engine/build.h"
#include "engine/gpu_memory.h"
#include "util/error.h"
#include "util/file.h"

namespace cbench {
namespace fs = std::filesystem;
namespace {

// Inside a box. cbench finds ../tasks beside its own directory, so `cbench check PATH` needs no
// more.
constexpr const char* kHome = "/opt/cbench";
constexpr const char* kProgram = "/opt/cbench/bin/cbench";
constexpr const char* kWork = "/app/work";
constexpr const char* kSubmission = "/app/submission";
constexpr const char* kSocket = "/app/control.sock";
constexpr const char* kInstruction = "/app/instruction.md";
constexpr const char* kModel = "/input/model";
constexpr const char* kData = "/input/data";
constexpr const char* kHeader = "/input/include/cbench/submission.h";
constexpr uint64_t kAgentTmp = uint64_t{4} << 30;

bool lies_in(const fs::path& inner, const fs::path& outer) {
  const std::string relative = inner.lexically_relative(outer).string();
  return !relative.empty() && !relative.starts_with("..");
}

/// Data that the agent may see must not hold what it may not.
void check_visible(const Contract& contract, const std::string& visible) {
  for (const std::string& hidden :
       {contract.data_path(contract.data.items), contract.data_path(contract.data.documents),
        contract.data_path(contract.data.reference) + "/hidden"}) {
    if (!lies_in(hidden, visible)) continue;
    throw UsageError("hidden_visible", contract.path + ": " + visible + " would show the agent " +
                                           hidden + "; move the hidden data out of it");
  }
}

void add_if_there(std::vector<Mount>& mounts, const std::string& host, const std::string& inside) {
  std::error_code error;
  if (fs::exists(host, error)) mounts.push_back({host, inside});
}

/// The paths under a tasks root that `cbench check` reads, as {host, relative}.
std::vector<Mount> task_side(const RunDir& run, const Contract& contract) {
  std::vector<Mount> side = {{run.contract(), contract.name + "/contract.yaml"}};
  const std::string checkpoint =
      contract.model.shipped ? contract.model.repository : contract.data.root + "/checkpoint";
  add_if_there(side, contract.checkpoint_dir(), checkpoint);
  add_if_there(side, contract.data_path(contract.data.reference) + "/public",
               contract.data.root + "/" + contract.data.reference + "/public");
  return side;
}

/// Without a box: the same tasks root made of links, and a `cbench` that uses it.
void write_links(const RunDir& run, const Contract& contract, const std::string& program) {
  const std::string root = run.input() + "/tasks";
  for (const Mount& part : task_side(run, contract)) {
    const fs::path link = root + "/" + part.inside;
    make_directories(link.parent_path().string());
    std::error_code error;
    fs::remove(link, error);
    fs::create_symlink(part.host, link);
  }
  write_file_atomic(run.input() + "/bin/cbench",
                    "#!/bin/sh\nexec '" + program + "' --tasks '" + root + "' \"$@\"\n", 0755);
}

void write_version_script(const RunDir& run, const AgentPlaces& places) {
  write_file_atomic(run.workspace() + "/version",
                    "#!/bin/sh\n# Saves the submission as a version: ./version \"what it is\"\n"
                    "exec '" +
                        places.program + "' version --socket '" + places.socket + "' -- \"$*\"\n",
                    0755);
}

}  // namespace

AgentPlaces agent_places(BoxKind kind, const RunDir& run, const Contract& contract) {
  if (kind == BoxKind::kDirect) {
    return {run.input() + "/bin/cbench",
            contract.checkpoint_dir(),
            contract.data_path(contract.data.visible),
            run.workspace(),
            run.submission(),
            run.socket(),
            run.instruction(),
            run.input() + "/submission.h"};
  }
  return {kProgram, kModel, kData, kWork, kSubmission, kSocket, kInstruction, kHeader};
}

std::vector<Mount> input_mounts(const RunDir& run, const Contract& contract,
                                const std::string& program) {
  std::vector<Mount> mounts = {{program, kProgram},
                               {run.instruction(), kInstruction},
                               {run.input() + "/submission.h", kHeader}};
  for (const Mount& part : task_side(run, contract)) {
    mounts.push_back({part.host, std::string(kHome) + "/tasks/" + part.inside});
  }
  add_if_there(mounts, contract.checkpoint_dir(), kModel);
  const std::string visible = contract.data_path(contract.data.visible);
  check_visible(contract, visible);
  add_if_there(mounts, visible, kData);
  for (const FetchItem& item : contract.fetch) {
    if (!item.visible || item.name == "checkpoint") continue;
    const std::string host = contract.data_path(item.name);
    if (lies_in(host, visible)) continue;
    check_visible(contract, host);
    add_if_there(mounts, host, "/input/" + item.name);
  }
  return mounts;
}

BoxSpec agent_box(BoxKind kind, const RunDir& run, const Contract& contract,
                  const std::string& program) {
  const AgentPlaces places = agent_places(kind, run, contract);
  write_file_atomic(run.input() + "/submission.h", submission_header());
  BoxSpec spec;
  spec.cwd = places.work;
  if (contract.hardware.device == "cuda") spec.gpu = make_gpu_meter(0)->box_gpu();
  spec.tmp_bytes = kAgentTmp;
  spec.hostname = "agent";
  spec.label = run.id();
  if (!contract.image.empty()) spec.image = contract.image;
  const std::string bin = fs::path(places.program).parent_path().string();
  spec.env = {{"PATH", bin + ":/usr/local/bin:/usr/bin:/bin"},
              {"HOME", places.work},
              {"LANG", "C.UTF-8"},
              {kRunVariable, run.id()}};
  spec.mounts = input_mounts(run, contract, program);
  if (kind == BoxKind::kDirect) {
    spec.mounts.clear();
    make_directories(run.input() + "/bin");
    write_links(run, contract, program);
  } else {
    spec.mounts.push_back({run.workspace(), kWork, true});
    spec.mounts.push_back({run.submission(), kSubmission, true});
    spec.mounts.push_back({run.socket(), kSocket, true});
  }
  write_version_script(run, places);
  return spec;
}

std::vector<pid_t> marked_processes(const std::string& run_id) {
  const std::string mark = std::string(kRunVariable) + "=" + run_id;
  std::vector<pid_t> found;
  DIR* proc = ::opendir("/proc");
  if (proc == nullptr) return found;
  while (const dirent* entry = ::readdir(proc)) {
    pid_t pid = 0;
    const char* end = entry->d_name + std::strlen(entry->d_name);
    if (std::from_chars(entry->d_name, end, pid).ptr != end || pid == ::getpid()) continue;
    const std::string path = "/proc/" + std::string(entry->d_name) + "/environ";
    const Fd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    std::string text(64 << 10, '\0');
    const ssize_t n = file.valid() ? ::read(file.get(), text.data(), text.size()) : 0;
    text.resize(n > 0 ? static_cast<size_t>(n) : 0);
    if (text.find(mark) != std::string::npos) found.push_back(pid);
  }
  ::closedir(proc);
  return found;
}

int end_marked_processes(const std::string& run_id) {
  int count = 0;
  for (int pass = 0; pass < 200; ++pass) {
    const std::vector<pid_t> pids = marked_processes(run_id);
    if (pids.empty()) return count;
    if (pass == 0) count = static_cast<int>(pids.size());
    for (const pid_t pid : pids) ::kill(pid, SIGKILL);
    const timespec pause{0, 10'000'000};
    ::nanosleep(&pause, nullptr);
  }
  return count;
}

}  // namespace cbench
