// The leaderboard: what ranks, what ties, what never ranks; CSV that survives hostile text.
#include <cmath>
#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "report/csv.h"
#include "report/html.h"
#include "report/leaderboard.h"
#include "report/rank.h"
#include "util/file.h"
#include "util/json.h"

namespace cbench {
namespace {

using testing::HasSubstr;
using testing::Not;

/// A scored verdict whose blocks lose `excess` nats each, give or take `noise`.
Json verdict(double excess, double noise = 0.01) {
  Json blocks = Json::array();
  for (int i = 0; i < 32; ++i) blocks.push_back(200 + 10 * (i % 7) + excess + noise * (i % 5 - 2));
  const double ln_f = -excess / 192;
  return {{"schema", "cbench.verdict.v1"},
          {"status", "scored"},
          {"reward", 10 * std::exp(ln_f)},
          {"reasons", Json::array()},
          {"contract_sha256", "c"},
          {"bits_per_parameter", 4.25},
          {"package", {{"sha256", "p"}, {"bytes", 3000000}}},
          {"likelihood",
           {{"ppl", 3 / std::exp(ln_f)},
            {"reference_ppl", 3.0},
            {"ln_f", ln_f},
            {"f", std::exp(ln_f)},
            {"interval", {ln_f - 0.001, ln_f + 0.001}},
            {"tokens", 32 * 192},
            {"block_nll", blocks}}},
          {"accuracy",
           {{"mean", 0.8},
            {"reference_mean", 0.9},
            {"benchmarks", {{"gsm8k", {{"right", 40}, {"total", 50}}}}}}},
          {"storage", {{"resident_after_load", 2900000}, {"resident_after_inference", 3100000}}},
          {"decode", {{"tokens_per_second", 200.0}, {"reference_tokens_per_second", 100.0}}}};
}

class ReportTest : public testing::Test {
 protected:
  void add(const std::string& run_id, const std::string& final_json,
           const Json& summary = {{"agent", "baseline"}}, const std::string& task = "t") {
    const std::string run = directory_.path() + "/" + task + "/" + run_id;
    make_directories(run + "/verdicts");
    write_file_atomic(run + "/SUMMARY.json", dump_json(summary));
    if (!final_json.empty()) write_file_atomic(run + "/verdicts/final.json", final_json);
  }
  void add_verdict(const std::string& run_id, const Json& final_json) {
    add(run_id, dump_json(final_json));
  }
  std::vector<RankedRun> ranked() const { return rank_runs(read_runs(directory_.path())); }

  TempDir directory_;
};

TEST_F(ReportTest, RanksByPairedDifferences) {
  add_verdict("a-worst", verdict(9));
  add_verdict("b-best", verdict(1));
  // Far within either interval of ln F, yet the same on every block: a real difference.
  add_verdict("c-close", verdict(1.0005));
  const auto runs = ranked();
  ASSERT_EQ(runs.size(), 3u);
  const char* order[] = {"b-best", "c-close", "a-worst"};
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(runs[static_cast<size_t>(i)].run.run_id, order[i]);
    EXPECT_EQ(runs[static_cast<size_t>(i)].rank, i + 1);
  }
}

TEST_F(ReportTest, NoiseMakesATie) {
  Json other = verdict(1);
  Json& blocks = other["likelihood"]["block_nll"];
  for (size_t i = 0; i < blocks.size(); ++i) {
    blocks[i] = blocks[i].get<double>() + (i % 2 == 0 ? 3.0 : -2.9);
  }
  other["reward"] = 9.9;
  add_verdict("a", verdict(1));
  add_verdict("b", other);
  add_verdict("c", verdict(60));
  const auto runs = ranked();
  ASSERT_EQ(runs.size(), 3u);
  EXPECT_EQ(runs[0].rank, 1);
  EXPECT_EQ(runs[1].rank, 1);
  EXPECT_EQ(runs[2].run.run_id, "c");
  EXPECT_EQ(runs[2].rank, 3);
}

TEST_F(ReportTest, WhatHasNoValidVerdictNeverRanks) {
  Json failed = verdict(1);
  failed["status"] = "gate_failed";
  failed["reward"] = 0;
  failed["reasons"] = {{{"code", "package_over_limit"}, {"message", "too large"}}};
  Json invalid = verdict(1);
  invalid["status"] = "invalid";
  invalid["reward"] = nullptr;
  Json text_reward = verdict(1);
  text_reward["reward"] = "nan";
  Json other_schema = verdict(1);
  other_schema["schema"] = "cbench.verdict.v9";
  add_verdict("a-invalid", invalid);
  add_verdict("b-failed", failed);
  add("c-missing", "");
  add("d-broken", "{\"schema\": \"cbench.verdict.v1\", \"reward\": NaN}");
  add_verdict("e-text", text_reward);
  add_verdict("f-schema", other_schema);
  add("g-deep", std::string(100000, '['));
  add_verdict("z-good", verdict(1));
  const auto runs = ranked();
  ASSERT_EQ(runs.size(), 8u);
  EXPECT_EQ(runs[0].run.run_id, "z-good");
  EXPECT_EQ(runs[0].rank, 1);
  EXPECT_EQ(runs[1].run.run_id, "b-failed");
  EXPECT_THAT(runs[1].run.final.reason, HasSubstr("package_over_limit"));
  for (size_t i = 1; i < runs.size(); ++i) {
    EXPECT_EQ(runs[i].rank, 0) << runs[i].run.run_id;
    if (runs[i].run.run_id != "a-invalid" && runs[i].run.run_id != "e-text") {
      EXPECT_FALSE(runs[i].run.final.reason.empty()) << runs[i].run.run_id;
    }
  }
}

TEST_F(ReportTest, TasksDoNotCompete) {
  add("x", dump_json(verdict(1)), {{"agent", "a"}}, "one");
  add("x", dump_json(verdict(90)), {{"agent", "a"}}, "two");
  for (const RankedRun& run : ranked()) EXPECT_EQ(run.rank, 1);
}

TEST_F(ReportTest, CsvHoldsTheFiguresAndIsStable) {
  add("r1", dump_json(verdict(1)),
      {{"agent", "=cmd|' /C calc'!A0"},
       {"agent_model", "m, \"quoted\"\nline"},
       {"created_utc", "2026-01-31T00:00:00.000Z"},
       {"versions", 3},
       {"hours_used", 0.5}});
  const std::string csv = leaderboard_csv(ranked());
  EXPECT_EQ(csv, leaderboard_csv(ranked()));
  EXPECT_THAT(csv, HasSubstr("1,t,,,,'=cmd|' /C calc'!A0,\"m, \"\"quoted\"\"\nline\",r1,"));
  EXPECT_THAT(csv, HasSubstr(",0.8,0.9,0.888888889,3000000,3100000,4.25,200,2,3,0.5,"));
  EXPECT_THAT(csv, Not(HasSubstr("nan")));
  const std::string ablations = ablations_csv(ranked());
  EXPECT_THAT(ablations, HasSubstr(",1,1,0,0,9.948"));
}

TEST_F(ReportTest, LinksAndStrayFilesAreNotRuns) {
  add_verdict("r1", verdict(1));
  write_file_atomic(directory_.path() + "/leaderboard.csv", "old");
  make_directories(directory_.path() + "/t/empty");
  ASSERT_EQ(symlink((directory_.path() + "/t/r1").c_str(), (directory_.path() + "/t/r2").c_str()),
            0);
  EXPECT_EQ(ranked().size(), 1u);
}

TEST_F(ReportTest, PageEscapesWhatRunsSay) {
  add("r1", dump_json(verdict(1)), {{"agent", "<script>alert(1)</script>"}});
  const std::string page = report_html(ranked());
  EXPECT_THAT(page, Not(HasSubstr("<script>")));
  EXPECT_THAT(page, HasSubstr("&lt;script&gt;"));
}

TEST(Csv, NumbersAreNeverNotNumbers) {
  EXPECT_EQ(format_figure(std::numeric_limits<double>::quiet_NaN()), "");
  EXPECT_EQ(format_figure(std::numeric_limits<double>::infinity()), "");
  EXPECT_EQ(format_figure(-0.25), "-0.25");
  CsvWriter csv({"a", "b"});
  csv.number(-1.5).text("-1.5");
  csv.end_row();
  EXPECT_EQ(csv.take(), "a,b\r\n-1.5,'-1.5\r\n");
}

}  // namespace
}  // namespace cbench
