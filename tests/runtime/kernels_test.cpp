// The CPU's kernels, in every instruction set, against naive references in double precision.
#include "runtime/cpu/kernels.h"

#include <gtest/gtest.h>

#include "runtime/ops_support.h"

namespace cbench::testing {
namespace {

/// Every instruction set that this machine runs.
class CpuKernels : public ::testing::TestWithParam<size_t> {
 protected:
  const cpu::Kernels& k() { return *cpu::runnable_kernels()[GetParam()]; }
};

TEST_P(CpuKernels, ExpAndGates) {
  std::vector<float> x;
  for (int i = -8700; i <= 8800; ++i) x.push_back(static_cast<float>(i) * 0.01f);
  std::vector<float> y(x.size());
  k().exp(x.data(), static_cast<int64_t>(x.size()), y.data());
  for (size_t i = 0; i < x.size(); ++i) {
    EXPECT_NEAR(y[i] / std::exp(double{x[i]}), 1, 3e-7) << x[i];
  }
  const auto gate = random_floats(77, 1, 20), up = random_floats(77, 2);
  std::vector<float> out(77);
  k().silu_mul(gate.data(), up.data(), 77, out.data());
  for (size_t i = 0; i < 77; ++i) {
    EXPECT_NEAR(out[i], gate[i] * sigmoid(gate[i]) * up[i], 2e-6);
  }
  k().gelu_mul(gate.data(), up.data(), 77, out.data());
  for (size_t i = 0; i < 77; ++i) EXPECT_NEAR(out[i], gelu_tanh(gate[i]) * up[i], 4e-6);
  out = gate;
  k().relu2(out.data(), 77);
  for (size_t i = 0; i < 77; ++i) EXPECT_EQ(out[i], gate[i] > 0 ? gate[i] * gate[i] : 0) << i;
  y = x;
  k().softcap(y.data(), static_cast<int64_t>(y.size()), 7);
  for (size_t i = 0; i < x.size(); ++i) {
    const double expected = 7 * std::tanh(double{x[i]} / 7);
    EXPECT_NEAR(y[i], expected, 4e-7 * std::abs(expected)) << x[i];
  }
  const float special[] = {NAN, INFINITY, -INFINITY, 0.0f};
  float result[4];
  k().exp(special, 4, result);
  EXPECT_TRUE(std::isnan(result[0]));
  EXPECT_GT(result[1], 1e38f);
  EXPECT_LT(result[2], 2e-38f);
  EXPECT_EQ(result[3], 1.0f);
}

TEST_P(CpuKernels, Norms) {
  for (const int64_t width : {1, 7, 16, 33, 256}) {
    const auto x = random_floats(static_cast<size_t>(width), 3);
    const auto weight = random_floats(static_cast<size_t>(width), 4);
    const auto z = random_floats(static_cast<size_t>(width), 5);
    double squares = 0;
    for (const float value : x) squares += double{value} * value;
    const double scale = 1 / std::sqrt(squares / static_cast<double>(width) + 1e-6);
    Doubles plain, gated, unit;
    for (size_t i = 0; i < x.size(); ++i) {
      plain.push_back(x[i] * scale * weight[i]);
      gated.push_back(plain.back() * z[i] * sigmoid(z[i]));
      unit.push_back(x[i] * 0.5 / std::sqrt(squares + 1e-6));
    }
    std::vector<float> y(x.size());
    k().rms_norm(x.data(), weight.data(), 1e-6f, width, y.data());
    EXPECT_LT(error_of(y, plain), 1e-6);
    k().rms_norm(x.data(), nullptr, 1e-6f, width, y.data());
    for (size_t i = 0; i < x.size(); ++i) EXPECT_NEAR(y[i], x[i] * scale, 4e-6);
    y.assign(x.size(), 2);
    k().add_rms_norm(x.data(), weight.data(), 1e-6f, 0.5f, width, y.data());
    for (size_t i = 0; i < x.size(); ++i) EXPECT_NEAR(y[i], (2 + plain[i]) / 2, 4e-6);
    k().gated_norm(x.data(), weight.data(), 1e-6f, z.data(), width, y.data());
    EXPECT_LT(error_of(y, gated), 1e-6);
    y = x;
    k().l2_norm(y.data(), width, 0.5f);
    EXPECT_LT(error_of(y, unit), 1e-6);
  }
}

TEST_P(CpuKernels, Gemv) {
  for (const int64_t rows : {1, 3, 4, 9, 21}) {
    for (const int64_t cols : {1, 15, 16, 40, 257}) {
      for (const int64_t tokens : {1, 3, 4, 8}) {
        const auto w = random_bf16(static_cast<size_t>(rows * cols), 5);
        const auto x = random_floats(static_cast<size_t>(tokens * cols), 6);
        std::vector<float> wide(w.size());
        k().widen(w.data(), rows * cols, wide.data());
        Doubles expected(static_cast<size_t>(tokens * rows));
        for (int64_t t = 0; t < tokens; ++t) {
          for (int64_t r = 0; r < rows; ++r) {
            double sum = 1;
            for (int64_t c = 0; c < cols; ++c) {
              const auto i = static_cast<size_t>(r * cols + c);
              ASSERT_EQ(wide[i], from_bf16(w[i]));
              sum += double{wide[i]} * x[static_cast<size_t>(t * cols + c)];
            }
            expected[static_cast<size_t>(t * rows + r)] = sum;
          }
        }
        std::vector<float> y(expected.size(), 1.0f);
        k().gemv_bf16(w.data(), rows, cols, cols, x.data(), tokens, cols, y.data(), rows, true);
        EXPECT_LT(error_of(y, expected), 2e-6) << rows << " " << cols << " " << tokens;
        y.assign(y.size(), 1.0f);
        k().gemv_f32(wide.data(), rows, cols, cols, x.data(), tokens, cols, y.data(), rows, true);
        EXPECT_LT(error_of(y, expected), 2e-6);
      }
    }
  }
}

TEST_P(CpuKernels, Matmul) {
  for (const int64_t m : {1, 4, 13, 30}) {
    for (const int64_t n : {16, 32, 48}) {
      for (const int64_t depth : {1, 31, 64}) {
        const auto a = random_floats(static_cast<size_t>(m * depth), 7);
        const auto b = random_floats(static_cast<size_t>(depth * n), 8);
        for (const bool transposed : {false, true}) {
          const int64_t a_row = transposed ? 1 : depth, a_col = transposed ? m : 1;
          Doubles expected(static_cast<size_t>(m * n), 2.0);
          for (int64_t i = 0; i < m; ++i) {
            for (int64_t d = 0; d < depth; ++d) {
              for (int64_t j = 0; j < n; ++j) {
                expected[static_cast<size_t>(i * n + j)] +=
                    double{a[static_cast<size_t>(i * a_row + d * a_col)]} *
                    b[static_cast<size_t>(d * n + j)];
              }
            }
          }
          std::vector<float> c(expected.size(), 2.0f);
          k().matmul(m, n, depth, a.data(), a_row, a_col, b.data(), n, c.data(), n, true);
          EXPECT_LT(error_of(c, expected), 2e-6) << m << " " << n << " " << depth;
        }
      }
    }
  }
}

TEST_P(CpuKernels, Convolution) {
  for (const int64_t taps : {1, 3, 4}) {
    for (const int64_t n : {9, 19, 64}) {
      const auto rows = random_floats(static_cast<size_t>(taps * n), 1);
      const auto weight = random_floats(static_cast<size_t>(taps * n), 2);
      const auto bias = random_floats(static_cast<size_t>(n), 3);
      std::vector<const float*> inputs;
      for (int64_t j = 0; j < taps; ++j) inputs.push_back(rows.data() + j * n);
      for (const float* added : {static_cast<const float*>(nullptr), bias.data()}) {
        Doubles expected;
        for (int64_t c = 0; c < n; ++c) {
          double sum = added ? added[c] : 0;
          for (int64_t j = 0; j < taps; ++j) {
            sum += double{weight[static_cast<size_t>(c * taps + j)]} *
                   rows[static_cast<size_t>(j * n + c)];
          }
          expected.push_back(sum * sigmoid(sum));
        }
        std::vector<float> out(static_cast<size_t>(n), NAN);
        k().conv_silu(inputs.data(), weight.data(), added, taps, n, out.data());
        EXPECT_LT(error_of(out, expected), 1e-6) << taps << " taps, " << n << " columns";
      }
    }
  }
}

TEST_P(CpuKernels, StateSpaceStep) {
  for (const int64_t width : {1, 4, 7}) {
    for (const int64_t n : {1, 16, 37}) {
      const auto before = random_floats(static_cast<size_t>(width * n), 1);
      const auto x = random_floats(static_cast<size_t>(width), 2);
      const auto b = random_floats(static_cast<size_t>(n), 3);
      const auto c = random_floats(static_cast<size_t>(n), 4);
      Doubles after, y;
      for (int64_t d = 0; d < width; ++d) {
        y.push_back(0);
        for (int64_t i = 0; i < n; ++i) {
          const auto at = static_cast<size_t>(i);
          after.push_back(0.7f * double{before[static_cast<size_t>(d * n + i)]} +
                          double{x[static_cast<size_t>(d)]} * b[at]);
          y.back() += after.back() * c[at];
        }
      }
      auto state = before;
      std::vector<float> out(static_cast<size_t>(width), NAN);
      k().ssm_step(state.data(), width, n, 0.7f, x.data(), b.data(), c.data(), out.data());
      EXPECT_LT(error_of(state, after), 1e-6) << width << " x " << n;
      EXPECT_LT(error_of(out, y), 2e-6) << width << " x " << n;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Sets, CpuKernels,
                         ::testing::Range(size_t{0}, cpu::runnable_kernels().size()),
                         [](const auto& test) {
                           return std::string(cpu::runnable_kernels()[test.param]->name);
                         });

}  // namespace
}  // namespace cbench::testing
