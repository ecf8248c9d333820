#include "eval/visible_text.h"

#include <algorithm>
#include <filesystem>
#include <set>
#include <string>

#include "text/jsonl.h"
#include "util/error.h"
#include "util/file.h"
#include "util/json.h"
#include "util/text.h"

namespace cbench {
namespace {

namespace fs = std::filesystem;
using Use = std::function<void(std::string_view)>;

constexpr size_t kPiece = 4u << 20, kOverlap = 8u << 10;

[[noreturn]] void refuse(const fs::path& path, const std::string& what) {
  throw UsageError("visible_data", path.string() + " is " + what +
                                       ": that no hidden item stands in it cannot be shown; give "
                                       "the agent text or JSON lines instead, or leave it out");
}

/// "" if these are the bytes of a text, else what they are.
std::string no_text(std::string_view bytes) {
  const std::pair<std::string_view, const char*> kinds[] = {
      {"PAR1", "a Parquet file"},
      {"%PDF-", "a PDF without its text beside it"},
      {"\x1f\x8b", "compressed (gzip)"},
      {"\x28\xb5\x2f\xfd", "compressed (zstd)"},
      {"PK\x03\x04", "an archive (zip)"},
      {"\xfd"
       "7zXZ",
       "compressed (xz)"},
      {"\x89PNG", "a picture"},
  };
  for (const auto& [start, kind] : kinds) {
    if (bytes.starts_with(start)) return kind;
  }
  return bytes.find('\0') != bytes.npos || !is_utf8(bytes) ? "not UTF-8 text" : "";
}

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
    if (const std::string problem = no_text(text); !problem.empty()) refuse(where, problem);
    use(text);
  }
}

void json_lines(const std::string& path, const Use& use) {
  JsonlReader reader(path);
  for (std::string_view line; reader.next(line);) json_text(line, reader.where(), use);
}

/// A text whose words are divided at line ends, as papers set them, is looked at both ways.
void use_text(std::string_view text, const Use& use) {
  use(text);
  if (text.find("-\n") == text.npos) return;
  std::string joined;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find("-\n", at), text.size());
    joined += text.substr(at, end - at);
    at = std::min(end + 2, text.size());
  }
  use(joined);
}

/// Where the last kOverlap bytes begin, at the start of a character.
size_t overlap_of(std::string_view text) {
  size_t at = text.size() - std::min(kOverlap, text.size());
  while (at < text.size() && (static_cast<unsigned char>(text[at]) & 0xc0) == 0x80) ++at;
  return at;
}

void plain_text(const fs::path& path, const Use& use) {
  const Fd file = open_regular(path);
  std::string piece(kPiece, '\0');
  size_t kept = 0;
  while (true) {
    const size_t n = read_some(file, piece.data() + kept, piece.size() - kept, path.string());
    const std::string_view all(piece.data(), kept + n);
    const std::string_view text = n == 0 ? all : all.substr(0, complete_utf8_prefix(all));
    if (const std::string problem = no_text(text); !problem.empty()) refuse(path, problem);
    if (n == 0) return;
    use_text(text, use);
    const size_t from = overlap_of(text);
    kept = all.size() - from;
    std::copy(all.begin() + static_cast<std::ptrdiff_t>(from), all.end(), piece.begin());
  }
}

/// `<folder>/pdf/<name>.pdf` and `<folder>/text/<name>.txt`, as cbench fetch lays papers down.
bool has_text_beside(const fs::path& pdf) {
  if (pdf.extension() != ".pdf" || pdf.parent_path().filename() != "pdf") return false;
  const fs::path text =
      pdf.parent_path().parent_path() / "text" / fs::path(pdf.stem()).concat(".txt");
  return fs::is_regular_file(fs::symlink_status(text)) && fs::file_size(text) > 0;
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

VisibleFiles each_visible_text(const Contract& contract, const Use& use) {
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
  VisibleFiles looked_at;
  for (const fs::path& file : files) {
    if (has_text_beside(file)) {
      ++looked_at.pdfs_by_text;
    } else {
      one_file(file, use);
      ++looked_at.read;
    }
  }
  return looked_at;
}

}  // namespace cbench
