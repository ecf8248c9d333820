#include "package/accountant.h"

#include <algorithm>
#include <initializer_list>
#include <vector>

#include "util/text.h"
#include "util/units.h"

namespace cbench {
namespace {

constexpr size_t kLargestShown = 3;

bool ends_with_any(std::string_view name, std::initializer_list<std::string_view> ends) {
  return std::any_of(ends.begin(), ends.end(),
                     [&](std::string_view e) { return name.ends_with(e); });
}

bool is_any(std::string_view name, std::initializer_list<std::string_view> names) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

std::string size_text(uint64_t bytes) { return format_size(static_cast<int64_t>(bytes)); }

std::string largest_files(const PackageTree& tree) {
  std::vector<const TreeFile*> files;
  for (const TreeFile& file : tree.files()) files.push_back(&file);
  const size_t shown = std::min(kLargestShown, files.size());
  std::partial_sort(files.begin(), files.begin() + static_cast<ptrdiff_t>(shown), files.end(),
                    [](const TreeFile* a, const TreeFile* b) {
                      return a->size != b->size ? a->size > b->size : a->path < b->path;
                    });
  std::string out;
  for (size_t i = 0; i < shown; ++i) {
    out += (i == 0 ? "; largest: " : ", ") + printable(files[i]->path, 80) + " " +
           size_text(files[i]->size);
  }
  return out;
}

std::string explain(const DiskReport& report, const PackageTree& tree) {
  std::string out = size_text(report.bytes);
  if (report.limit) {
    out += " of " + size_text(*report.limit) + ": ";
    out += report.over ? size_text(report.bytes - *report.limit) + " over"
                       : size_text(*report.limit - report.bytes) + " left";
  }
  return out + largest_files(tree);
}

}  // namespace

const char* file_class_name(FileClass file_class) {
  constexpr std::array<const char*, kFileClasses> kNames = {"weights", "code", "tokenizer",
                                                            "manifest", "other"};
  return kNames[static_cast<size_t>(file_class)];
}

FileClass classify_file(std::string_view path) {
  const size_t slash = path.rfind('/');
  const std::string_view name = slash == std::string_view::npos ? path : path.substr(slash + 1);
  if (is_any(name, {"cbench.json", "config.json", "generation_config.json",
                    "model.safetensors.index.json"})) {
    return FileClass::kManifest;
  }
  if (is_any(name, {"tokenizer.json", "tokenizer_config.json", "special_tokens_map.json",
                    "added_tokens.json", "vocab.json", "merges.txt", "tokenizer.model",
                    "chat_template.jinja"})) {
    return FileClass::kTokenizer;
  }
  if (ends_with_any(name, {".safetensors", ".bin", ".gguf", ".npy", ".npz", ".pt", ".pth"})) {
    return FileClass::kWeights;
  }
  if (ends_with_any(name, {".cpp", ".cc", ".c", ".cu", ".h", ".hpp", ".cuh", ".inc", ".so", ".py",
                           ".ptx", ".cubin"})) {
    return FileClass::kCode;
  }
  return FileClass::kOther;
}

DiskReport account_disk(const PackageTree& tree, std::optional<uint64_t> limit) {
  DiskReport report;
  for (const TreeFile& file : tree.files()) {
    auto& total = report.classes[static_cast<size_t>(classify_file(file.path))];
    total.bytes += file.size;
    total.files += 1;
  }
  report.bytes = tree.bytes();
  report.allocated = tree.allocated();
  report.path_bytes = tree.path_bytes();
  report.limit = limit;
  report.over = limit && report.bytes > *limit;
  report.explanation = explain(report, tree);
  return report;
}

}  // namespace cbench
