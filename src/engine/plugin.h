// The package's plugin in the engine process: loads the shared object, offers it the host table,
// and hands out its matrices.
#pragma once

#include <memory>
#include <string>

#include "package/safetensors.h"
#include "runtime/arena.h"
#include "runtime/ops.h"
#include "runtime/plugin_matrix.h"

namespace cbench {

class Plugin {
 public:
  /// Loads `library` and opens the plugin. `tensors` and `ops` must outlive it. Throws Error (exit
  /// 1): "plugin_load" (not loadable, symbol missing), "plugin_abi", "plugin_failed".
  Plugin(const std::string& library, const TensorStore& tensors, Ops& ops);
  ~Plugin();
  Plugin(const Plugin&) = delete;
  Plugin& operator=(const Plugin&) = delete;

  /// Loads one matrix, or those of a layer's experts. What it allocates counts in `category`.
  std::unique_ptr<PluginMatrix> load(const cb_matrix& matrix, Category category);

 private:
  struct Host;
  std::unique_ptr<Host> host_;
  void* library_ = nullptr;
  const cb_plugin* table_ = nullptr;
  void* self_ = nullptr;
};

}  // namespace cbench
