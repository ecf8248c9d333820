// cbench inspect: what a safetensors file, a checkpoint or a package holds, judged as strictly as
// by the loader.
#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>

#include <sys/stat.h>

#include "cli/commands.h"
#include "package/accountant.h"
#include "package/package.h"
#include "util/error.h"
#include "util/json.h"
#include "util/text.h"
#include "util/units.h"

namespace cbench {
namespace {

constexpr size_t kTensorsShown = 200;
constexpr std::string_view kSchema = "cbench.inspect.1";

struct Arguments {
  std::string path;
  std::string limit;
  bool json = false;
  bool hash = false;
  bool all = false;
  bool values = false;
};

/// What was found; only the parts that the kind has are filled.
struct Findings {
  std::string kind;  ///< safetensors, checkpoint, package
  std::optional<TensorFile> file;
  std::optional<Package> package;
  std::optional<DiskReport> disk;
  std::optional<std::string> hash;
  std::vector<std::string> problems;

  const std::vector<Tensor>& tensors() const {
    return file ? file->tensors() : package->tensors().tensors();
  }
};

std::string shape_text(const Tensor& tensor) {
  std::string out = "[";
  for (size_t i = 0; i < tensor.shape.size(); ++i) {
    out += (i == 0 ? "" : ", ") + std::to_string(tensor.shape[i]);
  }
  return out + "]";
}

/// A package when it holds a manifest, else a checkpoint; a file is a safetensors file. Nothing is
/// opened to find out, and a FIFO is refused before anything could wait for it.
std::string kind_of(const std::string& path) {
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0) {
    throw UsageError("not_found", errno_message("look at", path) +
                                      "; give a safetensors file, a checkpoint or a package");
  }
  if (S_ISREG(info.st_mode)) return "safetensors";
  if (!S_ISDIR(info.st_mode)) {
    throw UsageError("not_regular", path + " is neither a regular file nor a directory");
  }
  struct stat manifest {};
  const std::string name = path + "/" + std::string(kManifestName);
  return ::lstat(name.c_str(), &manifest) == 0 ? "package" : "checkpoint";
}

/// The format allows NaN and infinity; whoever looks at weights wants to know all the same.
void note_non_finite(Findings& found) {
  for (const Tensor& tensor : found.tensors()) {
    const uint64_t count = count_non_finite(tensor);
    if (count == 0) continue;
    found.problems.push_back(tensor.name + " holds " + std::to_string(count) +
                             " values that are NaN or infinite");
  }
}

void look_at_directory(const Arguments& args, Findings& found) {
  found.package.emplace(Package::open(args.path));
  std::optional<uint64_t> limit;
  if (!args.limit.empty()) limit = static_cast<uint64_t>(parse_size(args.limit));
  found.disk = account_disk(found.package->tree(), limit);
  if (args.hash) found.hash = found.package->hash();
  found.problems = found.package->warnings();
  if (found.disk->over) found.problems.push_back("over the limit: " + found.disk->explanation);
}

Findings look(const Arguments& args) {
  Findings found;
  found.kind = kind_of(args.path);
  if (found.kind == "safetensors") {
    found.file.emplace(args.path);
  } else {
    look_at_directory(args, found);
  }
  if (args.values) note_non_finite(found);
  return found;
}

Json tensors_json(const std::vector<Tensor>& tensors) {
  Json out = Json::array();
  for (const Tensor& tensor : tensors) {
    out.push_back({{"name", tensor.name},
                   {"dtype", dtype_name(tensor.dtype)},
                   {"shape", tensor.shape},
                   {"bytes", tensor.bytes.size()}});
  }
  return out;
}

Json disk_json(const DiskReport& disk) {
  Json classes = Json::object();
  for (size_t i = 0; i < kFileClasses; ++i) {
    classes[file_class_name(static_cast<FileClass>(i))] = {{"bytes", disk.classes[i].bytes},
                                                           {"files", disk.classes[i].files}};
  }
  Json out = {{"bytes", disk.bytes},
              {"allocated_bytes", disk.allocated},
              {"path_bytes", disk.path_bytes},
              {"classes", std::move(classes)}};
  out["limit_bytes"] = disk.limit ? Json(*disk.limit) : Json(nullptr);
  out["over"] = disk.over;
  return out;
}

Json files_json(const PackageTree& tree) {
  Json out = Json::array();
  for (const TreeFile& file : tree.files()) {
    Json entry = {{"path", file.path},
                  {"bytes", file.size},
                  {"class", file_class_name(classify_file(file.path))}};
    if (!file.sha256.empty()) entry["sha256"] = file.sha256;
    out.push_back(std::move(entry));
  }
  return out;
}

Json metadata_json(const TensorMetadata& metadata) {
  SortedJson out = SortedJson::object();  // untrusted, so perhaps of very many keys
  for (const auto& [key, value] : metadata) out[key] = value;
  return out;
}

void print_json(const Arguments& args, const Findings& found) {
  uint64_t bytes = 0;
  for (const Tensor& tensor : found.tensors()) bytes += tensor.bytes.size();
  Json out = {{"schema", kSchema}, {"path", args.path}, {"kind", found.kind}, {"ok", true}};
  out["tensor_count"] = found.tensors().size();
  out["tensor_bytes"] = bytes;
  if (found.file) out["metadata"] = metadata_json(found.file->metadata());
  if (found.disk) out["disk"] = disk_json(*found.disk);
  if (found.package) out["files"] = files_json(found.package->tree());
  if (found.hash) out["package_hash"] = *found.hash;
  out["problems"] = found.problems;
  out["tensors"] = tensors_json(found.tensors());
  std::printf("%s\n", dump_json(out, 1).c_str());
}

void print_disk(const DiskReport& disk) {
  std::printf("\n%-10s %12s  %s\n", "class", "bytes", "files");
  for (size_t i = 0; i < kFileClasses; ++i) {
    std::printf("%-10s %12" PRIu64 "  %" PRIu64 "\n", file_class_name(static_cast<FileClass>(i)),
                disk.classes[i].bytes, disk.classes[i].files);
  }
  std::printf("%-10s %12" PRIu64 "  (%" PRIu64 " allocated on disk)\n", "total", disk.bytes,
              disk.allocated);
  std::printf("%s\n", disk.explanation.c_str());
}

void print_text(const Arguments& args, const Findings& found) {
  std::printf("%s: a valid %s, %zu tensors\n\n", printable(args.path, 1000).c_str(),
              found.kind.c_str(), found.tensors().size());
  size_t width = 4;
  const size_t shown =
      args.all ? found.tensors().size() : std::min(kTensorsShown, found.tensors().size());
  for (size_t i = 0; i < shown; ++i) {
    width = std::min<size_t>(80, std::max(width, found.tensors()[i].name.size()));
  }
  for (size_t i = 0; i < shown; ++i) {
    const Tensor& tensor = found.tensors()[i];
    std::printf("%-*s %-11s %-20s %12zu\n", static_cast<int>(width), printable(tensor.name).c_str(),
                dtype_name(tensor.dtype), shape_text(tensor).c_str(), tensor.bytes.size());
  }
  if (shown < found.tensors().size()) {
    std::printf("... and %zu more; --all or --json shows them\n", found.tensors().size() - shown);
  }
  if (found.disk) print_disk(*found.disk);
  if (found.hash) std::printf("package hash %s\n", found.hash->c_str());
  for (const std::string& problem : found.problems) {
    std::printf("note: %s\n", printable(problem, 1000).c_str());
  }
}

int inspect(const Arguments& args) {
  try {
    const Findings found = look(args);
    if (args.json) {
      print_json(args, found);
    } else {
      print_text(args, found);
    }
    return static_cast<int>(Exit::kOk);
  } catch (const Error& error) {
    if (!args.json) throw;
    const Json out = {{"schema", kSchema},
                      {"path", args.path},
                      {"ok", false},
                      {"error", {{"code", error.code()}, {"message", error.what()}}}};
    std::printf("%s\n", dump_json(out, 1).c_str());
    return static_cast<int>(error.exit());
  }
}

}  // namespace

void add_inspect(CLI::App& app, int& exit_code) {
  auto args = std::make_shared<Arguments>();
  CLI::App* command = app.add_subcommand(
      "inspect", "Show and validate a safetensors file, a checkpoint or a package");
  command->add_option("path", args->path, "A file or a directory")->required();
  command->add_option("--limit", args->limit, "Compare the bytes with this size, \"8 GiB\"");
  command->add_flag("--hash", args->hash, "Also compute the package hash (reads every file)");
  command->add_flag("--all", args->all, "Print every tensor, not only the first 200");
  command->add_flag("--values", args->values, "Also look for NaN and infinity (reads every value)");
  command->add_flag("--json", args->json, "Print JSON (docs/package.md)");
  command->callback([args, &exit_code] { exit_code = inspect(*args); });
}

}  // namespace cbench
