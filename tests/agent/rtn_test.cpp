// Round-to-nearest: the error is bounded by half a step, and fitted ranges never make it worse.
#include "package/rtn.h"

#include <cmath>
#include <limits>

#include <gtest/gtest.h>

#include "util/error.h"
#include "util/random.h"

namespace cbench {
namespace {

constexpr int64_t kRows = 130, kCols = 96;

std::vector<uint16_t> weights() {
  Random random(7);
  std::vector<uint16_t> out(static_cast<size_t>(kRows * kCols));
  for (uint16_t& w : out) {
    const double sum = random.uniform() + random.uniform() + random.uniform() - 1.5;
    w = float_to_bf16(static_cast<float>(0.1 * sum));
  }
  return out;
}

double squared_error(const std::vector<uint16_t>& source, const RtnChoice& choice, float& worst) {
  const RtnMatrix matrix = quantise_rtn(source, kRows, kCols, choice);
  EXPECT_EQ(static_cast<int64_t>(matrix.codes.size() + matrix.scale.size() + matrix.min.size()),
            rtn_bytes(kRows, kCols, choice));
  std::vector<float> back(source.size());
  dequantise_rtn(matrix, kRows, kCols, choice, back);
  double sum = 0;
  worst = 0;
  for (size_t i = 0; i < source.size(); ++i) {
    const float error = std::abs(back[i] - bf16_to_float(source[i]));
    worst = std::max(worst, error);
    sum += static_cast<double>(error * error);
  }
  return sum;
}

TEST(Rtn, ErrorIsHalfAStepAndFittingHelps) {
  const std::vector<uint16_t> source = weights();
  for (int bits = 2; bits <= 8; ++bits) {
    for (const int64_t group : {1, 3, 32, 96}) {
      float worst = 0, worst_fitted = 0;
      const double plain = squared_error(source, {bits, group, false}, worst);
      const double fitted = squared_error(source, {bits, group, true}, worst_fitted);
      // Half of the widest step; 2^-7 of the range for BF16 scale and min.
      const float range = 0.3F, levels = static_cast<float>((1 << bits) - 1);
      EXPECT_LE(worst, 0.5F * range / levels + range / 128) << bits << " " << group;
      EXPECT_LE(fitted, plain) << bits << " " << group;
    }
  }
}

TEST(Rtn, RefusesWhatItCannotHold) {
  std::vector<uint16_t> source = weights();
  EXPECT_THROW(quantise_rtn(source, kRows, kCols, {4, 64, false}), UsageError);
  EXPECT_THROW(quantise_rtn(source, kRows, kCols, {4, 0, false}), UsageError);
  EXPECT_THROW(quantise_rtn(source, kRows, kCols, {1, 32, false}), UsageError);
  EXPECT_THROW(quantise_rtn(source, kRows, kCols, {9, 32, false}), UsageError);
  EXPECT_THROW(quantise_rtn(source, kRows - 1, kCols, {4, 32, false}), UsageError);
  source[5] = float_to_bf16(std::numeric_limits<float>::quiet_NaN());
  EXPECT_THROW(quantise_rtn(source, kRows, kCols, {4, 32, false}), UsageError);
}

TEST(Bf16, RoundsToEven) {
  EXPECT_EQ(float_to_bf16(1.0F), 0x3f80);
  EXPECT_EQ(float_to_bf16(1.00390625F), 0x3f80);  // half way: to even
  EXPECT_EQ(float_to_bf16(1.01171875F), 0x3f82);
  EXPECT_EQ(bf16_to_float(0xc000), -2.0F);
}

}  // namespace
}  // namespace cbench
