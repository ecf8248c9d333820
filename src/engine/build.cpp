#include "engine/build.h"

#include <algorithm>
#include <filesystem>

#include <sys/stat.h>

#include "package/tree.h"
#include "util/error.h"
#include "util/file.h"
#include "util/text.h"

namespace cbench {
namespace {

constexpr size_t kMaxLibrary = size_t{1} << 30;
constexpr uint64_t kCompilerMemory = uint64_t{8} << 30;  // nvcc needs a few GiB for a large file

std::string last_lines(std::string_view text, size_t max_bytes) {
  if (text.size() > max_bytes) text.remove_prefix(text.size() - max_bytes);
  return repair_utf8(text);
}

std::vector<std::string> compiler_command(const Manifest& manifest,
                                          const PluginBuildOptions& options) {
  const bool cuda = std::any_of(manifest.plugin.sources.begin(), manifest.plugin.sources.end(),
                                [](const std::string& s) { return s.ends_with(".cu"); });
  std::vector<std::string> argv;
  if (cuda) {
    if (options.device != "cuda") {
      throw Error(Exit::kGateFailed, "plugin_compile",
                  "the package has CUDA sources, but this task runs on the CPU");
    }
    const std::string arch =
        std::to_string(options.cuda_arch) + (options.cuda_arch == 90 ? "a" : "");
    argv = {"nvcc",          "-std=c++20",
            "-O3",           "-gencode=arch=compute_" + arch + ",code=sm_" + arch,
            "--shared",      "-Xcompiler",
            "-fPIC,-fopenmp"};
  } else {
    argv = {"c++", "-std=c++20", "-O3", "-march=native", "-fopenmp", "-shared", "-fPIC"};
  }
  argv.insert(argv.end(), {"-I/cbench/include", "-I/package/src", "-o", "/out/plugin.so"});
  for (const std::string& source : manifest.plugin.sources) argv.push_back("/package/" + source);
  return argv;
}

/// Whatever lies at the output path was written by hostile code: only a regular file of sane size
/// counts.
bool is_plain_library(const std::string& path) {
  struct stat info {};
  return ::lstat(path.c_str(), &info) == 0 && S_ISREG(info.st_mode) &&
         static_cast<size_t>(info.st_size) <= kMaxLibrary;
}

}  // namespace

namespace {

/// The engine mounts a copy of ours, not a path that somebody else can still change.
std::string copy_library(const std::string& package_dir, const std::string& library,
                         const std::string& out_dir) {
  const PackageTree tree = PackageTree::walk(package_dir);
  const TreeFile* file = tree.find(library);
  if (file == nullptr) {
    throw Error(Exit::kGateFailed, "plugin_file_missing",
                library + ": no such file in the package");
  }
  make_directories(out_dir);
  std::string copy = out_dir + "/plugin.so";
  write_file_atomic(copy, tree.read(*file, kMaxLibrary), 0755);
  return copy;
}

}  // namespace

std::string build_plugin(const std::string& package_dir, const Manifest& manifest,
                         const std::string& out_dir, const PluginBuildOptions& options) {
  if (!manifest.plugin.present()) return "";
  if (!manifest.plugin.library.empty()) {
    return copy_library(package_dir, manifest.plugin.library, out_dir);
  }
  const std::string include = out_dir + "/include";
  const std::string out = out_dir + "/lib";
  make_directories(include + "/cbench");
  make_directories(out);
  write_file_atomic(include + "/cbench/submission.h", submission_header());
  ::chmod(out.c_str(), 0777);  // the box may run as another user

  BoxSpec spec;
  spec.argv = compiler_command(manifest, options);
  spec.env = {{"PATH", "/usr/local/cuda/bin:/usr/local/bin:/usr/bin:/bin"},
              {"HOME", "/tmp"},
              {"LC_ALL", "C.UTF-8"}};
  spec.mounts = {
      {package_dir, "/package", false}, {include, "/cbench/include", false}, {out, "/out", true}};
  spec.limits.processes = 256;
  spec.limits.memory = kCompilerMemory;
  spec.limits.file_size = kMaxLibrary;
  spec.hostname = "build";
  if (options.box == BoxKind::kDirect) {
    // Without a box there are no mounts: the same command with the paths outside.
    for (std::string& arg : spec.argv) {
      if (arg == "/out/plugin.so") arg = out + "/plugin.so";
      if (arg == "-I/cbench/include") arg = "-I" + include;
      if (arg == "-I/package/src") arg = "-I" + package_dir + "/src";
      if (arg.starts_with("/package/")) arg = package_dir + arg.substr(8);
    }
    spec.mounts.clear();
  }
  const RunResult result = run_in_box(options.box, spec, options.timeout);
  if (result.timed_out) {
    throw Error(Exit::kGateFailed, "plugin_compile_timeout",
                "compiling the plugin took longer than " + std::to_string(options.timeout) + " s");
  }
  std::string library = out + "/plugin.so";
  if (!result.status.ok() || !is_plain_library(library)) {
    throw Error(Exit::kGateFailed, "plugin_compile",
                "the plugin does not compile (" + result.status.text() + "):\n" +
                    last_lines(result.err + result.out, 4000));
  }
  return library;
}

}  // namespace cbench
