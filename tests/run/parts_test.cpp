// The parts of a run one by one: journal, budget, hours, instruction, freeze.
#include <filesystem>
#include <fstream>
#include <functional>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "run/budget.h"
#include "run/freeze.h"
#include "run/instruction.h"
#include "run/journal.h"
#include "run/rig.h"
#include "util/error.h"

namespace cbench::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::Not;

std::string code_of(const std::function<void()>& body) {
  try {
    body();
    return "";
  } catch (const Error& error) {
    return error.code();
  }
}

TEST(Hours, OnlyPlainDecimals) {
  EXPECT_DOUBLE_EQ(parse_hours("8"), 28800);
  EXPECT_DOUBLE_EQ(parse_hours("0.5"), 1800);
  EXPECT_DOUBLE_EQ(parse_hours("8784"), 8784 * 3600.0);
  for (const char* wrong : {"nan", "inf", "-1", "0",   "0.0", "1e400", "1e3", "012",   "",  " 1",
                            "1 ",  "1.",  ".5", "0x1", "1,5", "8785",  "+1",  "1.2.3", "٣", "8h"}) {
    EXPECT_EQ(code_of([&] { parse_hours(wrong); }), "hours") << wrong;
  }
}

class JournalFile : public ::testing::Test {
 protected:
  TempDir temp{"cbench-journal"};
  std::string path = temp.path() + "/journal.jsonl";

  void append_raw(const std::string& bytes) {
    std::ofstream(path, std::ios::app | std::ios::binary) << bytes;
  }
};

TEST_F(JournalFile, KeepsEventsAndRepairsATornLine) {
  {
    Journal journal(path);
    journal.append("created", R"({"task": "x"})");
    journal.append("prepared");
  }
  for (const std::string& torn :
       {std::string("{\"seq\":3,\"pr"), std::string("\0\0\0", 3), std::string("\xff")}) {
    append_raw(torn);
    Journal journal(path);
    EXPECT_EQ(journal.events().back().name, "repaired");
  }
  EXPECT_EQ(read_journal(path).size(), 5u);
}

TEST_F(JournalFile, RefusesEveryChange) {
  {
    Journal journal(path);
    for (int i = 0; i < 4; ++i) journal.append("version", R"({"number": 1})");
  }
  const std::string good = read_file(path);
  const size_t second = good.find('\n') + 1, third = good.find('\n', second) + 1;
  std::string edited = good;
  edited.replace(edited.find("\"number\":1", second), 10, "\"number\":7");
  const std::vector<std::string> changed = {edited, good.substr(second),
                                            good.substr(0, second) + good.substr(third),
                                            good.substr(0, second) + "{}\n" + good.substr(second)};
  for (const std::string& text : changed) {
    write_file_atomic(path, text);
    EXPECT_EQ(code_of([&] { Journal journal(path); }), "journal_corrupt");
    EXPECT_EQ(code_of([&] { read_journal(path); }), "journal_corrupt");
  }
}

TEST(BudgetClock, SurvivesARestartAndNeverGrows) {
  TempDir temp;
  const std::string path = temp.path() + "/heartbeat.json";
  {
    Budget budget(path, 100);
    budget.start();
    ::usleep(50'000);
    budget.stop();
    EXPECT_GE(budget.used(), 0.05);
    EXPECT_LT(budget.left(), 100);
  }
  Budget again(path, 100);
  EXPECT_GE(again.used(), 0.05);
  EXPECT_DOUBLE_EQ(Budget(path, 100, 40).used(), 40);
  for (const char* text : {"", "{", "{\"used_seconds\": -5}", "{\"used_seconds\": \"x\"}"}) {
    write_file_atomic(path, text);
    EXPECT_EQ(Budget(path, 100).used(), 0) << text;
  }
}

TEST(Instruction, IsFilledCompletely) {
  Rig rig;
  const NewRun run = rig.new_run("true", 7200);
  AgentPlaces places;
  places.model = "/input/model";
  places.work = "/app/work";
  const std::string text = render_instruction(run.contract, places, run.budget_seconds);
  EXPECT_THAT(text, Not(HasSubstr("{{")));
  for (const char* expected : {"1.00 MiB", "1048576", "2h 00m", "/input/model", "gsm8k", "80 %"}) {
    EXPECT_THAT(text, HasSubstr(expected));
  }
}

class Freeze : public ::testing::Test {
 protected:
  void SetUp() override {
    make_directories(run.submission() + "/src");
    write_file_atomic(run.submission() + "/src/plugin.cpp", "code");
    write_file_atomic(run.submission() + "/weights", "w");
  }
  TempDir temp{"cbench-freeze"};
  RunDir run{temp.path()};
  TreeLimits limits = submission_limits(1 << 20);
};

TEST_F(Freeze, CanBeRepeatedAfterEachStep) {
  const std::string hash = freeze_submission(run, limits).package_hash;
  EXPECT_EQ(freeze_submission(run, limits).package_hash, hash);
  // Killed between the renames, and after them.
  fs::rename(run.submission(), run.submission() + ".sealing");
  make_directories(run.submission() + ".live");
  EXPECT_EQ(freeze_submission(run, limits).package_hash, hash);
  make_directories(run.submission() + ".live");
  EXPECT_EQ(freeze_submission(run, limits).package_hash, hash);
  EXPECT_FALSE(fs::exists(run.submission() + ".live"));
}

TEST_F(Freeze, AnOpenFileNoLongerReachesTheSubmission) {
  std::ofstream held(run.submission() + "/weights", std::ios::app);
  const Frozen frozen = freeze_submission(run, limits);
  held << "more after the deadline" << std::flush;
  EXPECT_EQ(read_file(run.submission() + "/weights"), "w");
  EXPECT_EQ(freeze_submission(run, limits).package_hash, frozen.package_hash);
}

TEST_F(Freeze, NamesWhatItRefuses) {
  fs::create_symlink("/etc/passwd", run.submission() + "/x");
  EXPECT_EQ(freeze_submission(run, limits).code, "symlink");
  fs::remove(run.submission() + "/x");
  fs::create_directory_symlink("/", run.submission() + "/root");
  EXPECT_EQ(freeze_submission(run, limits).code, "symlink");
  fs::remove(run.submission() + "/root");
  std::ofstream(run.submission() + "/hole").flush();
  fs::resize_file(run.submission() + "/hole", 10ull << 30);
  EXPECT_EQ(freeze_submission(run, limits).code, "too_large");
  fs::remove(run.submission() + "/hole");
  EXPECT_EQ(freeze_submission(run, limits).code, "");
}

}  // namespace
}  // namespace cbench::testing
