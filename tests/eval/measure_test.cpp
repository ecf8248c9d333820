// Statistics, the logits reader, blocks: closed forms and refusals.
#include <cmath>
#include <limits>

#include <gtest/gtest.h>

#include "engine/logits_reader.h"
#include "engine/support.h"
#include "eval/blocks.h"
#include "eval/statistics.h"
#include "eval/verdict.h"
#include "util/random.h"

namespace cbench::testing {
namespace {

TEST(Statistics, ClosedForms) {
  const std::vector<BlockNll> reference = {{10, 10}, {30, 10}};
  const std::vector<BlockNll> candidate = {{12, 10}, {30, 10}};
  EXPECT_DOUBLE_EQ(perplexity(reference), std::exp(2.0));
  EXPECT_DOUBLE_EQ(log_f(reference, candidate), -0.1);
  EXPECT_DOUBLE_EQ(std::exp(log_f(reference, candidate)),
                   perplexity(reference) / perplexity(candidate));
  EXPECT_EQ(median({3, 1, 2}), 2);
  EXPECT_EQ(median({4, 1, 2, 3}), 2.5);
  EXPECT_THROW(median({}), std::logic_error);
  EXPECT_THROW(log_f(reference, std::vector<BlockNll>{{1, 1}}), std::logic_error);
}

TEST(Statistics, BootstrapOfAKnownDistribution) {
  // Differences of variance 1 over 400 blocks of one token: a 95 % interval of +- 1.96 / 20.
  Random random(5);
  std::vector<BlockNll> reference, candidate;
  for (int i = 0; i < 400; ++i) {
    double sum = -6;
    for (int k = 0; k < 12; ++k) sum += random.uniform();
    reference.push_back({5 + sum, 1});
    candidate.push_back({5, 1});
  }
  const Interval interval = bootstrap_log_f(reference, candidate, 1);
  EXPECT_NEAR(interval.high - interval.low, 2 * 1.96 / 20, 0.03);
  const double center = log_f(reference, candidate);
  EXPECT_LT(interval.low, center);
  EXPECT_GT(interval.high, center);
  const Interval again = bootstrap_log_f(reference, candidate, 1);
  EXPECT_EQ(interval.low, again.low);
  EXPECT_EQ(interval.high, again.high);
}

TEST(Statistics, OneBlockGivesADegenerateInterval) {
  const std::vector<BlockNll> reference = {{10, 10}}, candidate = {{12, 10}};
  const Interval interval = bootstrap_log_f(reference, candidate, 1);
  EXPECT_DOUBLE_EQ(interval.low, -0.2);
  EXPECT_DOUBLE_EQ(interval.high, -0.2);
}

TEST(Gate, ComparesMeansExactly) {
  const auto gate = [](std::vector<BenchmarkResult> b) { return passes_mean_gate(b, 4, 5); };
  EXPECT_TRUE(gate({{"a", 40, 50, 50, 50, 0}}));
  EXPECT_FALSE(gate({{"a", 39, 50, 50, 50, 0}}));
  // Different numbers of items: the mean of 1.0 and 0.6 is 0.8; pooled it would be 0.64.
  EXPECT_TRUE(gate({{"a", 10, 10, 10, 10, 0}, {"b", 60, 100, 100, 100, 0}}));
  EXPECT_FALSE(gate({{"a", 10, 10, 10, 10, 0}, {"b", 59, 100, 100, 100, 0}}));
  EXPECT_FALSE(gate({}));
  EXPECT_FALSE(gate({{"a", 1, 0, 1, 1, 0}}));
  EXPECT_FALSE(gate({{"a", 51, 50, 50, 50, 0}}));
}

RowScore score(const std::vector<float>& row, int32_t target) {
  RowScore out;
  make_host_logits_reader()->score(row.data(), 1, static_cast<int64_t>(row.size()), {&target, 1},
                                   {&out, 1});
  return out;
}

TEST(LogitsReader, ClosedForms) {
  const RowScore uniform = score(std::vector<float>(1000, 3.5f), 7);
  EXPECT_NEAR(uniform.log_probability, -std::log(1000.0), 1e-12);
  EXPECT_EQ(uniform.argmax, 0);  // the lowest index of a tie
  EXPECT_EQ(uniform.target_gap, 0);
  std::vector<float> one_hot(100, 0);
  one_hot[42] = 200;
  EXPECT_NEAR(score(one_hot, 42).log_probability, 0, 1e-12);
  EXPECT_NEAR(score(one_hot, 3).log_probability, -200, 1e-9);
  EXPECT_EQ(score(one_hot, 3).argmax, 42);
  EXPECT_EQ(score(one_hot, 3).target_gap, 200);
  EXPECT_NEAR(score({1, 2}, 0).log_probability, -std::log1p(std::exp(1.0)), 1e-7);
}

TEST(LogitsReader, FloatExtremesStayFinite) {
  const float big = std::numeric_limits<float>::max();
  EXPECT_TRUE(score({big, 0}, 0).finite);
  EXPECT_EQ(score({big, 0}, 0).log_probability, 0);
  EXPECT_NEAR(score({big, big}, 1).log_probability, -std::log(2.0), 1e-12);
  EXPECT_NEAR(score({-big, -big, -big}, 1).log_probability, -std::log(3.0), 1e-12);
  const float tiny = std::numeric_limits<float>::denorm_min();
  EXPECT_NEAR(score({tiny, 0}, 1).log_probability, -std::log(2.0), 1e-12);
}

TEST(LogitsReader, NonFiniteRowsAreNoted) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float infinity = std::numeric_limits<float>::infinity();
  for (const float bad : {nan, infinity, -infinity}) {
    for (const size_t at : {size_t{0}, size_t{50}, size_t{100}}) {
      std::vector<float> row(101, 1);
      row[at] = bad;
      EXPECT_FALSE(score(row, 5).finite);
      const double half = 0.5;
      const auto reader = make_host_logits_reader();
      EXPECT_EQ(reader->argmax(row.data(), 1, 101)[0], -1);
      EXPECT_EQ(reader->sample(row.data(), 1, 101, 1, {&half, 1})[0], -1);
    }
  }
}

TEST(LogitsReader, SamplesFollowTheDistribution) {
  constexpr int kDraws = 200'000;
  const std::vector<float> row = {0.0f, 1.0f, -2.0f, 3.0f, 0.5f, -20.0f, 2.0f, 1.5f};
  Random random(99);
  std::vector<double> uniform(kDraws);
  for (double& u : uniform) u = random.uniform();
  std::vector<float> rows;
  for (int i = 0; i < kDraws; ++i) rows.insert(rows.end(), row.begin(), row.end());
  for (const double temperature : {1.0, 0.7}) {
    const auto drawn = make_host_logits_reader()->sample(
        rows.data(), kDraws, static_cast<int64_t>(row.size()), temperature, uniform);
    double total = 0;
    for (const float x : row) total += std::exp(double{x} / temperature);
    std::vector<double> count(row.size(), 0);
    for (const int32_t id : drawn) count.at(static_cast<size_t>(id)) += 1;
    double chi_square = 0;
    for (size_t i = 0; i < row.size(); ++i) {
      const double expected = kDraws * std::exp(double{row[i]} / temperature) / total;
      if (expected >= 5) chi_square += std::pow(count[i] - expected, 2) / expected;
    }
    EXPECT_LT(chi_square, 22.5) << temperature;  // 6 degrees of freedom, p = 0.001
  }
  const std::vector<double> ends = {0.0, std::nextafter(1.0, 0.0)};
  const auto edge = make_host_logits_reader()->sample(rows.data(), 2, 8, 1, ends);
  EXPECT_EQ(edge[0], 0);
  EXPECT_EQ(edge[1], 7);
}

Blocks some_blocks() {
  Blocks blocks;
  blocks.context = 3;
  blocks.continuation = 2;
  blocks.ids = {{1, 2, 3, 4, 5}, {6, 7, 8, 9, 0}};
  blocks.documents = {"a", "b"};
  return blocks;
}

TEST(Blocks, SurviveAFile) {
  const TempDir dir("cbench-test-blocks");
  write_blocks(dir.path() + "/b.safetensors", some_blocks());
  const Blocks read = read_blocks(dir.path() + "/b.safetensors", 10);
  EXPECT_EQ(read.ids, some_blocks().ids);
  EXPECT_EQ(read.documents, some_blocks().documents);
  EXPECT_EQ(read.context, 3);
  EXPECT_EQ(read.continuation, 2);
}

TEST(Blocks, WrongOnesAreRefused) {
  const TempDir dir("cbench-test-blocks");
  const std::string path = dir.path() + "/b.safetensors";
  const auto code = [&](const std::function<void(Blocks&)>& change, int64_t vocab = 10) {
    Blocks blocks = some_blocks();
    change(blocks);
    write_blocks(path, blocks);
    return caught([&] { read_blocks(path, vocab); }).code;
  };
  EXPECT_EQ(code([](Blocks&) {}), "");
  EXPECT_EQ(code([](Blocks&) {}, 9), "blocks");
  EXPECT_EQ(code([](Blocks& b) { b.ids[0][0] = -1; }), "blocks");
  EXPECT_EQ(code([](Blocks& b) { b.context = 0, b.continuation = 5; }), "blocks");
  EXPECT_EQ(code([](Blocks& b) { b.context = 5, b.continuation = 0; }), "blocks");
  EXPECT_EQ(code([](Blocks& b) { b.ids.clear(); }), "blocks");
  Tensor other;
  other.name = "ids";
  other.dtype = DType::kF32;
  other.shape = {1, 2};
  other.bytes = "12345678";
  write_safetensors(path, {&other, 1});
  EXPECT_EQ(caught([&] { read_blocks(path, 10); }).code, "blocks");
}

}  // namespace
}  // namespace cbench::testing
