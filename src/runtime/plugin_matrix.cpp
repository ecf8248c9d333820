// Checked calls into a plugin's function table.
#include "runtime/plugin_matrix.h"

#include "util/error.h"

namespace cbench {
namespace {

[[noreturn]] void plugin_failed(const std::string& matrix, const char* call, int code) {
  throw Error(Exit::kGateFailed, "plugin_failed",
              "the package's plugin failed in " + std::string(call) + " of " + matrix + " (code " +
                  std::to_string(code) + "); see its log");
}

}  // namespace

void PluginMatrix::dequantize_expert(int64_t expert, int64_t row, int64_t count, void* out,
                                     void* stream) const {
  const int code = table_.dequantize(matrix_, expert, row, count, out, stream);
  if (code != CB_OK) plugin_failed(name_, "dequantize", code);
}

void PluginMatrix::transform(const void* x, int64_t tokens, void* x_out, void* stream) const {
  const int code = table_.transform(matrix_, x, tokens, x_out, stream);
  if (code != CB_OK) plugin_failed(name_, "transform", code);
}

size_t PluginMatrix::workspace(int64_t tokens) const {
  return table_.workspace ? table_.workspace(matrix_, tokens) : 0;
}

bool PluginMatrix::matmul(const void* x, int64_t tokens, void* y, int64_t y_stride, void* workspace,
                          void* stream) const {
  if (!table_.matmul) return false;
  const int code = table_.matmul(matrix_, x, tokens, y, y_stride, workspace, stream);
  if (code == CB_UNSUPPORTED) return false;
  if (code != CB_OK) plugin_failed(name_, "matmul", code);
  return true;
}

bool PluginMatrix::experts(const void* x, const int32_t* expert, const int32_t* row, int64_t n,
                           void* y, void* workspace, void* stream) const {
  if (!table_.experts) return false;
  const int code = table_.experts(matrix_, x, expert, row, n, y, workspace, stream);
  if (code == CB_UNSUPPORTED) return false;
  if (code != CB_OK) plugin_failed(name_, "experts", code);
  return true;
}

bool PluginMatrix::embed(const int32_t* ids, int64_t n, void* y, void* stream) const {
  if (!table_.embed) return false;
  const int code = table_.embed(matrix_, ids, n, y, stream);
  if (code == CB_UNSUPPORTED) return false;
  if (code != CB_OK) plugin_failed(name_, "embed", code);
  return true;
}

}  // namespace cbench
