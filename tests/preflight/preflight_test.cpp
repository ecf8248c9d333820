// The preflight with faults put in: each is seen, named, and takes nothing else down.
#include "preflight/preflight.h"

#include <csignal>
#include <cstdlib>
#include <filesystem>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include "preflight/checks.h"
#include "preflight/mini_task.h"
#include "util/error.h"
#include "util/file.h"
#include "util/json.h"

namespace cbench {
namespace {

using testing::HasSubstr;

std::vector<CheckLine> lines_of(const std::function<void(CheckLines&)>& run, double seconds = 20) {
  return run_check({"probe", seconds, run});
}

/// The line with this name; a failing one named "absent" if there is none.
CheckLine line_of(const std::vector<CheckLine>& lines, const std::string& name) {
  for (const CheckLine& line : lines) {
    if (line.name == name) return line;
  }
  return {"absent", CheckLevel::kFail, "", ""};
}

void write_program(const std::string& path, const std::string& text) {
  write_file_atomic(path, "#!/bin/sh\n" + text, 0755);
}

const std::string kTasks = std::string(CBENCH_SOURCE_DIR) + "/tasks";
Contract tiny() { return find_task("tiny-hybrid-6m_4m_standard_cpu", kTasks); }
Contract gpu_task() { return find_task("Qwen3.8-27B_12g_standard_1xH200NVL", kTasks); }

TEST(Check, OneThatMisbehavesIsALineOfItsOwn) {
  const std::vector<std::pair<std::function<void(CheckLines&)>, std::string>> cases = {
      {[](CheckLines&) { throw EnvironmentError("x", "no such thing"); }, "no such thing"},
      {[](CheckLines&) { throw 5; }, "unknown exception"},
      {[](CheckLines&) { std::raise(SIGSEGV); }, "signal 11"},
      {[](CheckLines&) { std::abort(); }, "signal 6"},
      {[](CheckLines&) { ::_exit(3); }, "without a report"},
      {[](CheckLines&) {
         while (true) ::pause();
       },
       "within its time"},
  };
  std::vector<Check> checks;
  for (const auto& [run, says] : cases) checks.push_back({"bad", 0.5, run});
  checks.push_back({"good", 20, [](CheckLines& lines) { lines.ok("good", "fine\nand more"); }});
  const PreflightReport report = run_preflight("t", "bwrap", checks);
  ASSERT_EQ(report.lines.size(), cases.size() + 1);
  for (size_t i = 0; i < cases.size(); ++i) {
    EXPECT_EQ(report.lines[i].level, CheckLevel::kFail);
    EXPECT_THAT(report.lines[i].seen, HasSubstr(cases[i].second));
    EXPECT_NE(report.lines[i].todo, "");
  }
  EXPECT_EQ(report.lines.back().seen, "fine\nand more");
  EXPECT_FALSE(report.ready());
}

TEST(Check, LinesBeforeAnErrorAreKept) {
  const auto lines = lines_of([](CheckLines& out) {
    out.ok("first", "seen");
    throw EnvironmentError("x", "then this");
  });
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_EQ(lines[0].level, CheckLevel::kOk);
  EXPECT_EQ(lines[1].name, "probe");
}

TEST(Preflight, WarningsDoNotStopARun) {
  PreflightReport report{
      "t", "bwrap", {{"a", CheckLevel::kOk, "", ""}, {"b", CheckLevel::kWarn, "s", "d"}}};
  EXPECT_TRUE(report.ready());
  const Json json = parse_json(preflight_json(report), "report");
  EXPECT_EQ(json["schema"], "cbench.preflight.v1");
  EXPECT_EQ(json["ready"], true);
  EXPECT_EQ(json["checks"][1]["status"], "warn");
  EXPECT_EQ(json["checks"][1]["do"], "d");
  EXPECT_FALSE((PreflightReport{"t", "bwrap", {}}).ready()) << "nothing checked is not ready";
}

struct GpuCase {
  const char* fault;
  const char* line;
  CheckLevel level;
  const char* says;
};

TEST(Preflight, FaultsOfTheGpu) {
  ::unsetenv("CUDA_VISIBLE_DEVICES");
  const GpuCase cases[] = {
      {"", "gpu.model", CheckLevel::kOk, "GPU-00000000-1111"},
      {"", "gpu.idle", CheckLevel::kOk, ""},
      {"", "gpu.clocks", CheckLevel::kOk, "345 of 1785 MHz"},
      {"model", "gpu.model", CheckLevel::kWarn, "A100"},
      {"memory", "gpu.memory", CheckLevel::kFail, "78.12 GiB"},
      {"busy", "gpu.idle", CheckLevel::kFail, "4.88 GiB"},
      {"ecc", "gpu.ecc", CheckLevel::kWarn, "off"},
      {"ecc_errors", "gpu.ecc", CheckLevel::kFail, "3 uncorrected"},
      {"mig", "gpu.mig", CheckLevel::kFail, "MIG"},
      {"persistence", "gpu.persistence", CheckLevel::kWarn, "off"},
      {"heat", "gpu.clocks", CheckLevel::kWarn, "heat"},
      {"driver", "gpu.driver", CheckLevel::kFail, "12.2"},
      {"none", "gpu", CheckLevel::kFail, "no GPU"},
      {"init", "gpu", CheckLevel::kFail, "nvmlInit_v2"},
      {"crash", "probe", CheckLevel::kFail, "signal 6"},
      {"hang", "probe", CheckLevel::kFail, "within its time"},
  };
  PreflightOptions options;
  options.nvml = FAKE_NVML;
  const Contract contract = gpu_task();
  for (const GpuCase& one : cases) {
    SCOPED_TRACE(one.fault);
    ::setenv("FAKE_NVML_FAULT", one.fault, 1);
    const double seconds = std::string(one.fault) == "hang" ? 0.5 : 20;
    const auto lines =
        lines_of([&](CheckLines& out) { check_gpu(contract, options, out); }, seconds);
    const CheckLine line = line_of(lines, one.line);
    EXPECT_EQ(line.level, one.level) << line.name << ": " << line.seen;
    EXPECT_THAT(line.seen, HasSubstr(one.says));
  }
  ::unsetenv("FAKE_NVML_FAULT");
  options.nvml = "libno-such-driver.so.1";
  const auto absent = lines_of([&](CheckLines& out) { check_gpu(contract, options, out); });
  EXPECT_EQ(line_of(absent, "gpu").level, CheckLevel::kFail);
  EXPECT_EQ(
      line_of(lines_of([&](CheckLines& out) { check_gpu(tiny(), options, out); }), "gpu").level,
      CheckLevel::kOk);
}

TEST(Preflight, TheGpuIsTheOneThatCudaWillTake) {
  PreflightOptions options;
  options.nvml = FAKE_NVML;
  const Contract contract = gpu_task();
  const auto named = [&](const char* value) {
    ::setenv("CUDA_VISIBLE_DEVICES", value, 1);
    const auto lines = lines_of([&](CheckLines& out) { check_gpu(contract, options, out); });
    ::unsetenv("CUDA_VISIBLE_DEVICES");
    return line_of(lines, "gpu.model").level == CheckLevel::kOk;
  };
  for (const char* good : {"0", "GPU-00000000", "GPU-00000000-1111,1"})
    EXPECT_TRUE(named(good)) << good;
  for (const char* bad : {"", "1", "-1", "GPU-9", "nan"}) EXPECT_FALSE(named(bad)) << bad;
}

TEST(Preflight, CompilersAndToolkit) {
  TempDir dir;
  PreflightOptions options;
  options.compiler = dir.path() + "/c++";
  options.nvcc = dir.path() + "/nvcc";
  const auto look = [&] {
    return lines_of([&](CheckLines& out) { check_compilers(gpu_task(), options, out); });
  };
  EXPECT_EQ(line_of(look(), "compiler").level, CheckLevel::kFail);
  EXPECT_EQ(line_of(look(), "toolkit").level, CheckLevel::kFail);
  write_program(options.compiler, "echo c++ 12\n");
  write_program(options.nvcc, "echo 'Cuda compilation tools, release 12.4, V12.4.131'\n");
  EXPECT_EQ(line_of(look(), "compiler").level, CheckLevel::kOk);
  EXPECT_EQ(line_of(look(), "toolkit").level, CheckLevel::kOk);
  write_program(options.compiler, "exit 1\n");
  write_program(options.nvcc, "echo release 11.8\n");
  EXPECT_EQ(line_of(look(), "compiler").level, CheckLevel::kFail);
  EXPECT_EQ(line_of(look(), "toolkit").level, CheckLevel::kFail);
}

TEST(Preflight, DockerDaemonRuntimeImage) {
  TempDir dir;
  PreflightOptions options;
  options.box = BoxKind::kDocker;
  options.docker = dir.path() + "/docker";
  Contract contract = gpu_task();
  contract.image = "cbench@sha256:0123";
  const auto look = [&](const std::string& script) {
    write_program(options.docker, script);
    return lines_of([&](CheckLines& out) { check_docker(contract, options, out); });
  };
  const std::string info =
      "case $1 in info) echo '{\"ServerVersion\":\"27\",\"DockerRootDir\":\"/\",";
  const std::string rest = "}';; image) exit ${NO_IMAGE:-0};; run) echo 'GPU 0: H200';; esac\n";
  auto lines = look(info + "\"Runtimes\":{\"nvidia\":{}}" + rest);
  EXPECT_EQ(line_of(lines, "docker").level, CheckLevel::kOk);
  EXPECT_EQ(line_of(lines, "docker.runtime").level, CheckLevel::kOk);
  EXPECT_EQ(line_of(lines, "docker.image").level, CheckLevel::kOk);
  EXPECT_EQ(line_of(lines, "docker.gpu").level, CheckLevel::kOk);
  EXPECT_NE(line_of(lines, "docker.disk").name, "absent");
  EXPECT_EQ(line_of(look(info + "\"Runtimes\":{}" + rest), "docker.runtime").level,
            CheckLevel::kFail);
  EXPECT_EQ(line_of(look("NO_IMAGE=1\n" + info + "\"Runtimes\":{}" + rest), "docker.image").level,
            CheckLevel::kFail);
  contract.image = "cbench:latest";
  EXPECT_EQ(line_of(look(info + "\"Runtimes\":{}" + rest), "docker.image").level,
            CheckLevel::kWarn);
  for (const char* broken :
       {"exit 1\n", "echo '{'\n", "echo '[]'\n", "echo '{\"ServerVersion\":3}'\n"}) {
    EXPECT_EQ(line_of(look(broken), "docker").level, CheckLevel::kFail) << broken;
  }
}

TEST(Preflight, BoxesAndPython) {
  PreflightOptions options;
  options.box = BoxKind::kDirect;
  EXPECT_EQ(
      line_of(lines_of([&](CheckLines& out) { check_isolation(options, out); }), "isolation").level,
      CheckLevel::kWarn);
  options.python = "/no/such/python3";
  const auto lines = lines_of([&](CheckLines& out) { check_python(options, out); });
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_EQ(lines[0].level, CheckLevel::kFail);
}

TEST(Preflight, TokensClockAndDisk) {
  const Contract contract = gpu_task();
  const auto token = [&](const char* value) {
    ::setenv("HF_TOKEN", value, 1);
    const auto lines = lines_of([&](CheckLines& out) { check_token(contract, out); });
    ::unsetenv("HF_TOKEN");
    return line_of(lines, "token").level;
  };
  EXPECT_EQ(token("hf_abc"), CheckLevel::kOk);
  EXPECT_EQ(token("hf_a\nb"), CheckLevel::kFail);
  EXPECT_EQ(token("abc"), CheckLevel::kWarn);
  Contract huge = tiny();
  huge.limit = int64_t{1} << 52;
  EXPECT_EQ(
      line_of(lines_of([&](CheckLines& out) { check_disk(huge, {}, out); }), "disk.runs").level,
      CheckLevel::kFail);
  MiniTask task;
  const Contract mini = task.contract();
  EXPECT_NE(line_of(lines_of([&](CheckLines& out) { check_clock(mini, out); }), "clock").level,
            CheckLevel::kFail);
  std::filesystem::last_write_time(
      mini.path, std::filesystem::file_time_type::clock::now() + std::chrono::hours(48));
  EXPECT_EQ(line_of(lines_of([&](CheckLines& out) { check_clock(mini, out); }), "clock").level,
            CheckLevel::kFail);
}

TEST(Preflight, AReferenceEditedByHand) {
  TempDir dir;
  const std::string tasks = dir.path() + "/tasks";
  std::filesystem::create_directories(tasks);
  for (const char* part : {"models", "data", "shared", "tiny-hybrid-6m_4m_standard_cpu"}) {
    std::filesystem::copy(kTasks + "/" + part, tasks + "/" + part,
                          std::filesystem::copy_options::recursive);
  }
  const Contract contract = find_task("tiny-hybrid-6m_4m_standard_cpu", tasks);
  const auto look = [&] {
    return line_of(lines_of([&](CheckLines& out) { check_reference(contract, out); }), "reference");
  };
  EXPECT_EQ(look().level, CheckLevel::kOk) << look().seen;
  const std::string path = tasks + "/data/tiny/reference/hidden/reference.json";
  const std::string good = read_file(path);
  std::string bad = good;
  bad.replace(bad.find("\"right\": "), 9, "\"right\": 1");
  write_file_atomic(path, bad);
  EXPECT_EQ(look().level, CheckLevel::kFail);
  EXPECT_THAT(look().seen, HasSubstr("edited"));
  write_file_atomic(path, good.substr(0, good.size() / 2));
  EXPECT_EQ(look().level, CheckLevel::kFail);
  std::filesystem::remove(path);
  EXPECT_EQ(look().level, CheckLevel::kFail);
  std::filesystem::resize_file(tasks + "/models/tiny-hybrid-6m/model.safetensors", 5000);
  const auto lines = lines_of([&](CheckLines& out) { check_checkpoint(contract, out); });
  EXPECT_EQ(lines.back().level, CheckLevel::kFail);
}

TEST(Preflight, ASelfCheckThatMeasuresSomethingElse) {
  TempDir dir;
  PreflightOptions options;
  options.program = dir.path() + "/cbench";
  const auto look = [&](const std::string& script) {
    write_program(options.program, script);
    return line_of(lines_of([&](CheckLines& out) { check_model(tiny(), options, out); }),
                   "self_check");
  };
  EXPECT_EQ(look("echo '{\"likelihood\":{\"ppl\":1.7023}}'\n").level, CheckLevel::kOk);
  for (const char* wrong :
       {"echo '{\"likelihood\":{\"ppl\":1.71}}'\n", "echo '{\"likelihood\":null}'\n", "exit 4\n",
        "echo '{\"likelihood\":{\"ppl\":\"x\"}}'\n", "echo broken >&2\n"}) {
    EXPECT_EQ(look(wrong).level, CheckLevel::kFail) << wrong;
  }
}

}  // namespace
}  // namespace cbench
