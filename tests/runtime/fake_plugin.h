// A plugin for tests: BF16 rows behind the C interface, with or without its optional functions.
#pragma once

#include <cstring>
#include <vector>

#include "runtime/ops_support.h"
#include "runtime/plugin_matrix.h"

namespace cbench::testing {

/// `experts` matrices [rows, cols] of random BF16 values. Counts the calls of its products; those
/// of more than `limit` tokens or pairs are unsupported. With a transform the stored rows are those
/// of 2 W, and x_out = x / 2.
struct FakePlugin {
  struct Offers {
    bool matmul = false, transform = false, embed = false, expert_products = false;
  };

  int64_t rows, cols, experts;
  std::vector<uint16_t> weights;  // [experts, rows, cols]
  cb_plugin table{};
  int64_t limit = 1 << 20;
  int products = 0;

  FakePlugin(int64_t the_rows, int64_t the_cols, Offers offers, int64_t the_experts = 1)
      : rows(the_rows),
        cols(the_cols),
        experts(the_experts),
        weights(random_bf16(static_cast<size_t>(experts * rows * cols), 11)) {
    table.abi = CB_ABI_VERSION;
    table.size = sizeof(table);
    table.dequantize = dequantize;
    if (offers.transform) table.transform = transform;
    if (offers.matmul) table.matmul = matmul;
    if (offers.expert_products) table.experts = expert_products;
    if (offers.matmul || offers.expert_products) table.workspace = workspace;
    if (offers.embed) table.embed = embed;
  }

 private:
  static FakePlugin& of(void* m) { return *static_cast<FakePlugin*>(m); }

  float dot(int64_t expert, int64_t row, const float* x) const {
    const uint16_t* w = weights.data() + (expert * rows + row) * cols;
    double sum = 0;
    for (int64_t c = 0; c < cols; ++c) sum += double{from_bf16(w[c])} * x[c];
    return static_cast<float>(sum);
  }

  static int dequantize(void* m, int64_t expert, int64_t row, int64_t count, void* out, cb_stream) {
    const FakePlugin& self = of(m);
    if (expert < 0 || expert >= self.experts || row + count > self.rows) return CB_ERROR;
    const uint16_t* from = self.weights.data() + (expert * self.rows + row) * self.cols;
    for (int64_t i = 0; i < count * self.cols; ++i) {
      const float value = from_bf16(from[i]);
      static_cast<uint16_t*>(out)[i] = to_bf16(self.table.transform ? 2 * value : value);
    }
    return CB_OK;
  }
  static int transform(void* m, const void* x, int64_t tokens, void* out, cb_stream) {
    for (int64_t i = 0; i < tokens * of(m).cols; ++i) {
      static_cast<float*>(out)[i] = static_cast<const float*>(x)[i] / 2;
    }
    return CB_OK;
  }
  static size_t workspace(void*, int64_t tokens) { return static_cast<size_t>(tokens); }

  static int matmul(void* m, const void* x, int64_t tokens, void* y, int64_t stride, void* work,
                    cb_stream) {
    FakePlugin& self = of(m);
    if (tokens > self.limit) return CB_UNSUPPORTED;
    ++self.products;
    std::memset(work, 1, static_cast<size_t>(tokens));
    for (int64_t t = 0; t < tokens; ++t) {
      for (int64_t r = 0; r < self.rows; ++r) {
        static_cast<float*>(y)[t * stride + r] =
            self.dot(0, r, static_cast<const float*>(x) + t * self.cols);
      }
    }
    return CB_OK;
  }
  static int expert_products(void* m, const void* x, const int32_t* expert, const int32_t* row,
                             int64_t n, void* y, void* work, cb_stream) {
    FakePlugin& self = of(m);
    if (n > self.limit) return CB_UNSUPPORTED;
    ++self.products;
    std::memset(work, 1, static_cast<size_t>(n));
    for (int64_t i = 0; i < n; ++i) {
      for (int64_t r = 0; r < self.rows; ++r) {
        static_cast<float*>(y)[i * self.rows + r] =
            self.dot(expert[i], r, static_cast<const float*>(x) + row[i] * self.cols);
      }
    }
    return CB_OK;
  }
  static int embed(void* m, const int32_t* ids, int64_t n, void* y, cb_stream) {
    const FakePlugin& self = of(m);
    for (int64_t i = 0; i < n * self.cols; ++i) {
      static_cast<float*>(y)[i] = from_bf16(
          self.weights[static_cast<size_t>(ids[i / self.cols] * self.cols + i % self.cols)]);
    }
    return CB_OK;
  }
};

}  // namespace cbench::testing
