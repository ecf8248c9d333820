// Submissions that misbehave: each ends in a named outcome, within a bounded time, with the
// engine's last words, and with nothing left running.
#include <gmock/gmock.h>

#include "engine/support.h"
#include "runtime/support.h"
#include "util/clock.h"

namespace cbench::testing {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;

const std::string kModel = golden_dir("llama_tied");
const std::vector<int32_t> kText = {3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 97, 93};

/// Loads the hostile plugin in one mode and does all that an evaluation does.
Caught run_hostile(const std::string& mode, EngineMemory* memory = nullptr,
                   const std::function<void(EngineOptions&)>& tune = {}) {
  const TestPackage package(kModel, hostile_manifest(read_file(kModel + "/config.json"), mode),
                            plugin_fixture("hostile"));
  EngineOptions options = engine_options(package, built_plugin(plugin_fixture("hostile")));
  // Only what never answers has to wait for these; a loaded machine must not.
  options.load_timeout = mode == "spin_load" ? 5 : 60;
  options.reply_timeout = mode == "spin_matmul" || mode == "print_for_ever" ? 5 : 60;
  if (tune) tune(options);
  const Caught result = caught([&] {
    Engine engine(options);
    for (const float value : engine_logits(engine, {kText})) {
      if (!std::isfinite(value)) throw Error(Exit::kGateFailed, "non_finite", "NaN");
    }
    engine.generate(0, 5, static_cast<int32_t>(kText.size()), 8, [](int32_t) {});
    const EngineMemory now = engine.memory();
    if (memory != nullptr) *memory = now;
    engine.close();
  });
  EXPECT_EQ(processes_with(package.path()), 0) << mode;
  return result;
}

struct Hostile {
  const char* mode;
  const char* code;
  const char* says = "";
};
void PrintTo(const Hostile& hostile, std::ostream* out) { *out << hostile.mode; }
class HostilePlugin : public ::testing::TestWithParam<Hostile> {};

TEST_P(HostilePlugin, HasANamedOutcome) {
  const Caught error = run_hostile(GetParam().mode);
  EXPECT_EQ(error.code, GetParam().code) << error.message;
  EXPECT_THAT(error.message, HasSubstr(GetParam().says));
  EXPECT_EQ(error.exit, error.code.empty() ? Exit::kOk : Exit::kGateFailed);
}

INSTANTIATE_TEST_SUITE_P(
    Modes, HostilePlugin,
    ::testing::Values(
        Hostile{"plain", ""}, Hostile{"refuse_load", "plugin_failed", "I do not want to"},
        Hostile{"crash_load", "engine_crashed", "signal 11"},
        Hostile{"throw_load", "internal", "thrown across the border"},
        Hostile{"throw_int_load", "internal", "no exception"}, Hostile{"spin_load", "engine_hung"},
        Hostile{"exit0_load", "engine_exited", "exit code 0"},
        Hostile{"fast_exit0_load", "engine_exited", "exit code 0"},
        Hostile{"kill_load", "engine_out_of_memory"},
        Hostile{"alloc_huge_host", "plugin_failed", "no such memory"}, Hostile{"daemon", ""},
        Hostile{"escape", ""}, Hostile{"write_own_file", ""}, Hostile{"read_outside", ""},
        Hostile{"garbage_fd3", "engine_protocol", "malformed"},
        Hostile{"huge_frame_fd3", "engine_protocol", "malformed"},
        Hostile{"ready_fd3", "engine_protocol", "vocabulary"},
        Hostile{"wrong_types_fd3", "engine_protocol", "malformed"},
        Hostile{"bad_error_fd3", "engine_error"}, Hostile{"close_fd3", "engine_exited"},
        Hostile{"omp_threads", ""}, Hostile{"crash_matmul", "engine_crashed", "signal 11"},
        Hostile{"abort_matmul", "engine_crashed", "signal 6"},
        Hostile{"spin_matmul", "engine_hung"}, Hostile{"exit0_matmul", "engine_exited"},
        Hostile{"refuse_matmul", "plugin_failed", "not today"}, Hostile{"nan", "non_finite"},
        Hostile{"infinite", "non_finite"}, Hostile{"print_much", ""},
        Hostile{"print_for_ever", "engine_hung", "dull boy"}, Hostile{"overrun", "engine_crashed"},
        Hostile{"spin_close", "engine_hung"}, Hostile{"crash_close", "engine_crashed"}),
    [](const auto& p) { return std::string(p.param.mode); });

TEST(HostileMemory, AHundredGigabytesEndTheEngineAndNothingElse) {
  const Caught error =
      run_hostile("alloc_huge_malloc", nullptr, [](EngineOptions& o) { o.memory = 2ull << 30; });
  EXPECT_THAT(error.code, AnyOf("engine_out_of_memory", "engine_crashed"));
  EXPECT_EQ(error.exit, Exit::kGateFailed);
}

TEST(HostileMemory, WhatIsHiddenIsUnexplained) {
  for (const char* mode : {"hidden_malloc", "hidden_memfd", "hidden_child"}) {
    EngineMemory memory;
    EXPECT_EQ(run_hostile(mode, &memory).code, "") << mode;
    EXPECT_GT(memory.unexplained(), 6 << 20) << mode;
    EXPECT_GT(memory.resident(), 6 << 20) << mode;
  }
  EngineMemory memory;
  EXPECT_EQ(run_hostile("plain", &memory).code, "");
  expect_as_planned(memory);
}

TEST(HostileTime, ASlowEngineThatAnswersIsEndedByTheDeadline) {
  const double started = boot_seconds();
  const Caught error = run_hostile("slow_matmul", nullptr, [&](EngineOptions& o) {
    o.reply_timeout = 60;
    o.load_timeout = 60;
    o.deadline = boot_seconds() + 2;
  });
  EXPECT_EQ(error.code, "time_limit");
  EXPECT_EQ(error.exit, Exit::kGateFailed);
  EXPECT_LT(boot_seconds() - started, 30);
}

TEST(HostileTime, ThreadSettingsOfThePluginDoNotChangeResults) {
  const auto logits = [](const std::string& mode) {
    const TestPackage package(kModel, hostile_manifest(read_file(kModel + "/config.json"), mode),
                              plugin_fixture("hostile"));
    Engine engine(engine_options(package, built_plugin(plugin_fixture("hostile"))));
    return engine_logits(engine, {kText});
  };
  EXPECT_EQ(logits("plain"), logits("omp_threads"));
}

/// Plugins that cannot be loaded or compiled.
Caught build_and_load(const std::string& name, double build_timeout = 60) {
  return caught([&] {
    const TestPackage package(kModel, hostile_manifest(read_file(kModel + "/config.json"), "plain"),
                              plugin_fixture(name));
    const TempDir out("cbench-test-build");
    PluginBuildOptions options;
    options.box = test_box();
    options.timeout = build_timeout;
    const Package opened = Package::open(package.path());
    const std::string plugin = build_plugin(package.path(), opened.manifest(), out.path(), options);
    Engine engine(engine_options(package, plugin));
    engine.close();
  });
}

TEST(Unloadable, HasANamedOutcome) {
  const struct {
    const char* name;
    const char* code;
    const char* says;
  } cases[] = {
      {"does_not_compile", "plugin_compile", "this_name_does_not_exist"},
      {"reads_host_file", "plugin_compile", "shadow"},
      {"exits_in_constructor", "engine_exited", "exit code 0"},
      {"no_symbol", "plugin_load", "cbench_plugin"},
      {"unresolved", "plugin_load", "nobody_has_this"},
      {"wrong_abi", "plugin_abi", "version 2"},
      {"no_functions", "plugin_abi", "required"},
      {"no_table", "plugin_abi", "version"},
  };
  for (const auto& c : cases) {
    const Caught error = build_and_load(c.name);
    EXPECT_EQ(error.code, c.code) << c.name << ": " << error.message;
    EXPECT_THAT(error.message, HasSubstr(c.says)) << c.name;
    EXPECT_EQ(error.exit, Exit::kGateFailed) << c.name;
  }
}

TEST(Unloadable, AnEndlessCompilationIsEnded) {
  const double started = boot_seconds();
  const Caught error = build_and_load("template_bomb", 3);
  EXPECT_THAT(error.code, AnyOf("plugin_compile_timeout", "plugin_compile")) << error.message;
  EXPECT_LT(boot_seconds() - started, 30);
}

TEST(Library, APrebuiltOneIsUsedFromACopy) {
  TestPackage package(kModel);
  make_directories(package.path() + "/lib");
  fs::copy_file(built_plugin(plugin_fixture("hostile")), package.path() + "/lib/p.so");
  Json manifest = hostile_manifest(package.config(), "plain");
  manifest["plugin"] = {{"library", "lib/p.so"}};
  package.write_manifest(manifest);
  const Package opened = Package::open(package.path());
  const TempDir out("cbench-test-build");
  PluginBuildOptions options;
  options.box = test_box();
  const std::string plugin = build_plugin(package.path(), opened.manifest(), out.path(), options);
  EXPECT_TRUE(plugin.starts_with(out.path()));
  Engine engine(engine_options(package, plugin));
  EXPECT_EQ(engine_logits(engine, {kText}).size(), kText.size() * 128);
  engine.close();

  fs::remove(package.path() + "/lib/p.so");
  fs::create_symlink("/etc/passwd", package.path() + "/lib/p.so");
  const TempDir other("cbench-test-build");
  EXPECT_NE(
      caught([&] { build_plugin(package.path(), opened.manifest(), other.path(), options); }).code,
      "");
}

TEST(Library, GarbageIsNotLoadable) {
  TestPackage package(kModel);
  put_file(package.path() + "/lib/p.so", "this is no library");
  Json manifest = hostile_manifest(package.config(), "plain");
  manifest["plugin"] = {{"library", "lib/p.so"}};
  package.write_manifest(manifest);
  const auto error =
      caught([&] { Engine engine(engine_options(package, package.path() + "/lib/p.so")); });
  EXPECT_EQ(error.code, "plugin_load");
}

TEST(ChangedPackage, AFileThatShrinksEndsTheEngineOnly) {
  // Weights are read while loading; a plugin may read its tensors at any time.
  const TestPackage package(kModel);
  Engine engine(engine_options(package));
  fs::resize_file(package.path() + "/weights.safetensors", 64);
  const auto error = caught([&] { engine_logits(engine, {kText}); });
  EXPECT_THAT(error.code, AnyOf("", "engine_crashed"));
}

}  // namespace
}  // namespace cbench::testing
