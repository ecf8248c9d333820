// Checked calls into a plugin's function table.
#include "runtime/plugin_matrix.h"

#include <algorithm>

#include "util/error.h"

namespace cbench {
namespace {

constexpr size_t kMostWorkspace = size_t{64} << 30;

[[noreturn]] void plugin_failed(const std::string& matrix, const char* call, int code) {
  throw Error(Exit::kGateFailed, "plugin_failed",
              "the package's plugin failed in " + std::string(call) + " of " + matrix + " (code " +
                  std::to_string(code) + "); see its log");
}

[[noreturn]] void workspace_refused(const std::string& matrix, size_t bytes, const char* why) {
  throw Error(Exit::kGateFailed, "plugin_failed",
              "the package's plugin asks for " + std::to_string(bytes) +
                  " bytes of workspace for " + matrix + ": " + why);
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

size_t PluginMatrix::plan_workspace(int64_t tokens) const {
  if (!table_.workspace) return 0;
  size_t bytes = table_.workspace(matrix_, tokens);
  for (int64_t t = 1; t < tokens; t = t < 16 ? t + 1 : 2 * t) {
    bytes = std::max(bytes, table_.workspace(matrix_, t));
  }
  if (bytes > kMostWorkspace) {
    workspace_refused(name_, bytes, "no more than 64 GiB are possible");
  }
  planned_ = std::max(planned_, bytes);
  return bytes;
}

size_t PluginMatrix::workspace(int64_t tokens) const {
  const size_t bytes = table_.workspace ? table_.workspace(matrix_, tokens) : 0;
  if (bytes > planned_) workspace_refused(name_, bytes, "that is more than it asked for at load");
  return bytes;
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
