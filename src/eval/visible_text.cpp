#include "eval/visible_text.h"

#include <algorithm>
#include <filesystem>
#include <set>
#include <string>

#include "text/jsonl.h"
#include "util/error.h"
#include "util/file.h"
#include "util/json.h"

namespace cbench {
namespace {

namespace fs = std::filesystem;
using Use = std::function<void(std::string_view)>;

constexpr size_t kPiece = 4u << 20, kOverlap = 8u << 10;

void strings_of(const Json& value, const Use& use) {
  if (value.is_string()) use(value.get_ref<const std::string&>());
  if (value.is_structured()) {
    for (const Json& part : value) strings_of(part, use);
  }
}

/// What is not JSON is still text.
void json_text(std::string_view text, const std::string& where, const Use& use) {
  try {
    strings_of(parse_json(text, where), use);
  } catch (const UsageError&) {
    use(text);
  }
}

void json_lines(const std::string& path, const Use& use) {
  JsonlReader reader(path);
  for (std::string_view line; reader.next(line);) json_text(line, reader.where(), use);
}

void plain_text(const std::string& path, const Use& use) {
  const Fd file = open_regular(path);
  std::string piece(kPiece, '\0');
  size_t kept = 0;
  for (bool first = true;; first = false) {
    const size_t n = read_some(file, piece.data() + kept, piece.size() - kept, path);
    const std::string_view text(piece.data(), kept + n);
    if (first && (text.starts_with("%PDF-") || text.substr(0, 4096).find('\0') != text.npos))
      return;
    if (n == 0) return;
    use(text);
    kept = std::min(kOverlap, text.size());
    std::copy(text.end() - static_cast<std::ptrdiff_t>(kept), text.end(), piece.begin());
  }
}

void one_file(const fs::path& path, const Use& use) {
  const std::string name = path.filename().string();
  if (name.find(".jsonl") != std::string::npos) return json_lines(path, use);
  if (name.ends_with(".json") && fs::file_size(path) <= (64u << 20)) {
    return json_text(read_file(path), path, use);
  }
  plain_text(path, use);
}

}  // namespace

void each_visible_text(const Contract& contract, const Use& use) {
  std::set<fs::path> roots = {contract.data_path(contract.data.visible)};
  for (const FetchItem& item : contract.fetch) {
    if (item.visible && item.name != "checkpoint") roots.insert(contract.data_path(item.name));
  }
  std::set<fs::path> files;
  for (const fs::path& root : roots) {
    if (fs::is_regular_file(fs::symlink_status(root))) files.insert(root);
    if (!fs::is_directory(fs::symlink_status(root))) continue;
    for (const fs::directory_entry& entry : fs::recursive_directory_iterator(root)) {
      if (fs::is_regular_file(entry.symlink_status())) files.insert(entry.path());
    }
  }
  for (const fs::path& file : files) one_file(file, use);
}

}  // namespace cbench
