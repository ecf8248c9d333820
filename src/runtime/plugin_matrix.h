// A matrix that a package's plugin serves (include/cbench/submission.h), as the ops see it.
#pragma once

#include <cstdint>
#include <string>

#include "cbench/submission.h"

namespace cbench {

/// Thin, checked calls into the plugin's table. A CB_ERROR becomes InvalidError-free Error
/// ("plugin_failed", exit 1) naming the matrix and the call: it is the submission's failure.
class PluginMatrix {
 public:
  /// `experts` matrices [rows, cols]; 1 for a dense one.
  PluginMatrix(const cb_plugin& table, void* matrix, std::string name, int64_t rows, int64_t cols,
               int64_t experts = 1)
      : table_(table),
        matrix_(matrix),
        name_(std::move(name)),
        rows_(rows),
        cols_(cols),
        experts_(experts) {}

  int64_t rows() const { return rows_; }
  int64_t cols() const { return cols_; }
  int64_t expert_count() const { return experts_; }
  const std::string& name() const { return name_; }
  bool has_transform() const { return table_.transform != nullptr; }
  bool has_experts() const { return table_.experts != nullptr; }

  /// BF16 rows [row, row + count) to `out` [count, cols].
  void dequantize(int64_t row, int64_t count, void* out, void* stream) const {
    dequantize_expert(0, row, count, out, stream);
  }
  void dequantize_expert(int64_t expert, int64_t row, int64_t count, void* out, void* stream) const;
  void transform(const void* x, int64_t tokens, void* x_out, void* stream) const;
  /// The most that any count up to `tokens` asks for (each to 16, then by doubling, then `tokens`):
  /// what is planned at load. Error ("plugin_failed") for an absurd answer.
  size_t plan_workspace(int64_t tokens) const;
  /// Bytes for this count; Error ("plugin_failed") if it is more than was planned.
  size_t workspace(int64_t tokens) const;
  /// False when the plugin does not serve this token count: dequantize and multiply instead.
  bool matmul(const void* x, int64_t tokens, void* y, int64_t y_stride, void* workspace,
              void* stream) const;
  /// For i < n: y[i, :] = W[expert[i]] x[row[i], :]; the index arrays lie on the device. False when
  /// the plugin does not serve this many: dequantize experts and multiply instead.
  bool experts(const void* x, const int32_t* expert, const int32_t* row, int64_t n, void* y,
               void* workspace, void* stream) const;
  /// False when the plugin has no embed: dequantize the asked rows instead.
  bool embed(const int32_t* ids, int64_t n, void* y, void* stream) const;

 private:
  const cb_plugin& table_;
  void* matrix_;
  std::string name_;
  int64_t rows_, cols_, experts_;
  mutable size_t planned_ = 0;  ///< bytes of workspace
};

}  // namespace cbench
