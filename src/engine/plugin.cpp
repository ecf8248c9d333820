#include "engine/plugin.h"

#include <algorithm>
#include <cstring>

#include <dlfcn.h>
#include <omp.h>

#include "util/error.h"
#include "util/log.h"
#include "util/text.h"

namespace cbench {
namespace {

int32_t abi_dtype(DType dtype) {
  switch (dtype) {
    case DType::kBool:
      return CB_BOOL;
    case DType::kU8:
      return CB_U8;
    case DType::kI8:
      return CB_I8;
    case DType::kI16:
      return CB_I16;
    case DType::kU16:
      return CB_U16;
    case DType::kF16:
      return CB_F16;
    case DType::kBF16:
      return CB_BF16;
    case DType::kI32:
      return CB_I32;
    case DType::kU32:
      return CB_U32;
    case DType::kF32:
      return CB_F32;
    case DType::kF64:
      return CB_F64;
    case DType::kI64:
      return CB_I64;
    case DType::kU64:
      return CB_U64;
    case DType::kF8E4M3:
      return CB_F8_E4M3;
    case DType::kF8E5M2:
      return CB_F8_E5M2;
    default:
      return CB_OTHER;
  }
}

[[noreturn]] void plugin_error(const char* code, const std::string& message) {
  throw Error(Exit::kGateFailed, code, message);
}

}  // namespace

/// What the plugin may call. Its `ctx` is this object; nothing may throw across the C border.
struct Plugin::Host {
  cb_host table{};
  const TensorStore* tensors;
  Ops* ops;
  Category category = Category::kWeights;
  std::string last_log;

  static Host& of(void* ctx) { return *static_cast<Host*>(ctx); }

  static void* alloc(void* ctx, size_t bytes, const char* what) {
    Host& host = of(ctx);
    try {
      return host.ops->arena().allocate(bytes, host.category, what != nullptr ? what : "plugin");
    } catch (const std::exception& error) {
      log(ctx, CB_LOG_ERROR, error.what());
      return nullptr;
    }
  }

  static int find(void* ctx, const char* name, cb_tensor* out) {
    const Tensor* tensor = name != nullptr ? of(ctx).tensors->find(name) : nullptr;
    if (tensor == nullptr || tensor->shape.size() > std::size(out->shape)) return CB_ERROR;
    *out = {tensor->name.c_str(),
            abi_dtype(tensor->dtype),
            static_cast<int32_t>(tensor->shape.size()),
            {},
            tensor->bytes.size(),
            tensor};
    std::copy(tensor->shape.begin(), tensor->shape.end(), out->shape);
    return CB_OK;
  }

  /// The bytes asked for, or an empty view when the range is not inside the tensor.
  static std::string_view range(const cb_tensor* tensor, uint64_t offset, uint64_t n) {
    if (tensor == nullptr || tensor->handle == nullptr) return {};
    const std::string_view bytes = static_cast<const Tensor*>(tensor->handle)->bytes;
    if (offset > bytes.size() || n > bytes.size() - offset) return {};
    return bytes.substr(offset, n);
  }

  static int read(void* ctx, const cb_tensor* tensor, uint64_t offset, uint64_t n, void* to) {
    const std::string_view bytes = range(tensor, offset, n);
    if (bytes.size() != n) return CB_ERROR;
    try {
      if (n > 0) of(ctx).ops->copy_in(to, bytes.data(), bytes.size());
      return CB_OK;
    } catch (const std::exception& error) {
      log(ctx, CB_LOG_ERROR, error.what());
      return CB_ERROR;
    }
  }

  static int read_host(void*, const cb_tensor* tensor, uint64_t offset, uint64_t n, void* to) {
    const std::string_view bytes = range(tensor, offset, n);
    if (bytes.size() != n) return CB_ERROR;
    if (n > 0) std::memcpy(to, bytes.data(), bytes.size());
    return CB_OK;
  }

  static void log(void* ctx, int level, const char* text) {
    const std::string line = printable(text != nullptr ? text : "", 1000);
    of(ctx).last_log = line;
    spdlog::log(level >= CB_LOG_ERROR     ? spdlog::level::err
                : level == CB_LOG_WARNING ? spdlog::level::warn
                                          : spdlog::level::info,
                "plugin: {}", line);
  }
};

Plugin::Plugin(const std::string& library, const TensorStore& tensors, Ops& ops)
    : host_(std::make_unique<Host>()) {
  host_->tensors = &tensors;
  host_->ops = &ops;
  const DeviceFacts facts = ops.facts();
  host_->table = {
      CB_ABI_VERSION, sizeof(cb_host),       ops.is_cuda() ? CB_DEVICE_CUDA : CB_DEVICE_CPU,
      facts.arch,     facts.multiprocessors, ops.is_cuda() ? CB_BF16 : CB_F32,
      host_.get(),    Host::alloc,           Host::find,
      Host::read,     Host::read_host,       Host::log};
  library_ = ::dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library_ == nullptr) plugin_error("plugin_load", std::string("plugin: ") + ::dlerror());
  const auto entry = reinterpret_cast<cbench_plugin_function>(::dlsym(library_, "cbench_plugin"));
  if (entry == nullptr) {
    plugin_error("plugin_load",
                 "plugin: no function cbench_plugin; see include/cbench/submission.h");
  }
  table_ = entry(CB_ABI_VERSION);
  if (table_ == nullptr || table_->abi != CB_ABI_VERSION) {
    plugin_error("plugin_abi", "plugin: built for ABI version " +
                                   std::to_string(table_ != nullptr ? table_->abi : 0) +
                                   ", this harness speaks " + std::to_string(CB_ABI_VERSION));
  }
  if (table_->size < sizeof(cb_plugin) || table_->load == nullptr ||
      table_->dequantize == nullptr) {
    plugin_error("plugin_abi", "plugin: load and dequantize are required");
  }
  if (table_->open != nullptr && table_->open(&host_->table, &self_) != CB_OK) {
    plugin_error("plugin_failed", "plugin: open failed: " + host_->last_log);
  }
}

Plugin::~Plugin() {
  if (table_ != nullptr && table_->close != nullptr) table_->close(self_);
  // The library stays loaded: its code may still own threads or exit handlers.
}

std::unique_ptr<PluginMatrix> Plugin::load(const cb_matrix& matrix, Category category) {
  host_->category = category;
  host_->last_log.clear();
  void* handle = nullptr;
  if (table_->load(self_, &matrix, &handle) != CB_OK) {
    plugin_error("plugin_failed",
                 "plugin: load of " + std::string(matrix.name) + " failed: " + host_->last_log);
  }
  return std::make_unique<PluginMatrix>(*table_, handle, matrix.name, matrix.rows, matrix.cols,
                                        matrix.experts);
}

}  // namespace cbench
