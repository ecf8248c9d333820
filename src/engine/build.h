// Compiling a package's sources into its plugin, inside a box.
#pragma once

#include <string>

#include "box/box.h"
#include "package/manifest.h"

namespace cbench {

struct PluginBuildOptions {
  BoxKind box = BoxKind::kBwrap;
  std::string device = "cpu";  ///< "cuda" allows .cu sources
  int cuda_arch = 90;          ///< 10 * major + minor
  double timeout = 300;        ///< seconds
};

/// Compiles `manifest`'s sources from the package directory to `out_dir`/plugin.so and returns its
/// path; a prebuilt library is copied there instead; "" when the package has no plugin. Throws
/// Error (exit 1) "plugin_compile" with the compiler's last lines, or "plugin_compile_timeout".
std::string build_plugin(const std::string& package_dir, const Manifest& manifest,
                         const std::string& out_dir, const PluginBuildOptions& options);

/// The exact text of include/cbench/submission.h, so that one binary suffices to build plugins.
std::string_view submission_header();

}  // namespace cbench
