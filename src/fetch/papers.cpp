// Papers: PDFs from their publishers at a polite pace, text by pdftotext in a box, and an index
// that grep and people can read.
#include <algorithm>
#include <filesystem>
#include <set>

#include <unistd.h>

#include "box/box.h"
#include "fetch/sources.h"
#include "util/json.h"
#include "util/log.h"
#include "util/process.h"
#include "util/text.h"

namespace cbench {
namespace fs = std::filesystem;
namespace {

constexpr int64_t kMaxPdf = 256 << 20;
constexpr size_t kMaxText = 32u << 20;
constexpr uint64_t kBoxProcesses = 16, kBoxTmp = 64u << 20;

/// "Attention Is All You Need" -> "attention-is-all-you-need"; unique among `used`.
std::string slug_of(const Paper& paper, std::set<std::string>& used) {
  std::string slug;
  const std::string& from = !paper.name.empty()    ? paper.name
                            : !paper.title.empty() ? paper.title
                                                   : paper.url;
  for (const char c : from) {
    const bool plain = (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9');
    if (c >= 'A' && c <= 'Z')
      slug += static_cast<char>(c - 'A' + 'a');
    else if (plain)
      slug += c;
    else if (!slug.empty() && slug.back() != '-')
      slug += '-';
  }
  slug.resize(std::min<size_t>(slug.size(), 80));
  while (slug.ends_with('-')) slug.pop_back();
  if (slug.empty()) slug = "paper";
  std::string unique = slug;
  for (int i = 2; !used.insert(unique).second; ++i) unique = slug + "-" + std::to_string(i);
  return unique;
}

/// Valid UTF-8 without control characters other than line breaks and tabs.
std::string clean_text(const std::string& raw) {
  std::string out;
  for (const char c : repair_utf8(raw)) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte >= 0x20 ? byte != 0x7f : (c == '\n' || c == '\t')) out += c;
  }
  return out;
}

int64_t count_words(const std::string& text) {
  int64_t words = 0;
  bool inside = false;
  for (const char c : text) {
    const bool blank = c == ' ' || c == '\n' || c == '\t';
    if (!blank && !inside) ++words;
    inside = !blank;
  }
  return words;
}

class PaperFetcher {
 public:
  PaperFetcher(const SourceTools& tools, std::string folder, LockedItem& locked)
      : tools_(tools), folder_(std::move(folder)), locked_(locked), before_(locked.files) {
    locked_.files.clear();
    locked_.problems.clear();
  }
  void fetch(const Paper& paper, const std::string& slug);
  void write_index();

 private:
  const LockedFile* still_there(const std::string& path, const std::string& url) const;
  LockedFile fetch_pdf(const Paper& paper, const std::string& path);
  void check_pdf(const Paper& paper, const std::string& file);
  void require_converter();
  std::string text_of(const std::string& pdf) const;

  const SourceTools& tools_;
  std::string folder_;  // relative to the root
  LockedItem& locked_;
  std::vector<LockedFile> before_;
  std::set<std::string> refusing_hosts_;
  std::string converter_;  // path of pdftotext
  Json index_ = Json::array();
};

const LockedFile* PaperFetcher::still_there(const std::string& path, const std::string& url) const {
  for (const LockedFile& file : before_) {
    if (file.path == path && file.source == url &&
        check_locked(tools_.root, file, tools_.options.verify, tools_.options.interrupt).empty()) {
      return &file;
    }
  }
  return nullptr;
}

void PaperFetcher::check_pdf(const Paper& paper, const std::string& file) {
  const Fd fd = open_regular(file);
  std::string head(4096, '\0');
  head.resize(read_some(fd, head.data(), head.size(), file));
  if (head.substr(0, 1024).find("%PDF-") != std::string::npos) return;
  fs::remove(file);
  if (head.find("Access Denied") != std::string::npos || head.find("denied") != std::string::npos) {
    refusing_hosts_.insert(parse_origin(paper.url).host);
    throw EnvironmentError("access_denied",
                           "the publisher refuses programs for now; no further "
                           "request is made there, try again tomorrow");
  }
  throw EnvironmentError("not_pdf", "the publisher sent something that is not a PDF");
}

LockedFile PaperFetcher::fetch_pdf(const Paper& paper, const std::string& path) {
  const Origin origin = parse_origin(paper.url);
  if (refusing_hosts_.contains(origin.host)) {
    throw EnvironmentError("access_denied", "not asked: " + origin.host + " refuses programs");
  }
  tools_.context.wait_for_turn(origin.text());
  Download download;
  download.url = paper.url;
  download.name = path;
  download.path = tools_.work + "/papers/" + fs::path(path).filename().string();
  download.sha256 = paper.sha256;
  download.max_size = kMaxPdf;
  DownloadOptions options = tools_.options.download;
  options.connections = 1;
  HttpContext own(tools_.options.http, tools_.options.interrupt);
  try {
    download_all({download}, tools_.work + "/papers", own, options);
  } catch (...) {
    tools_.context.hold(origin.text(), tools_.options.paper_interval);
    throw;
  }
  tools_.context.hold(origin.text(), tools_.options.paper_interval);
  check_pdf(paper, download.path);
  const std::string final_path = tools_.root + "/" + path;
  make_directories(fs::path(final_path).parent_path());
  fs::rename(download.path, final_path);
  return describe_item_file(tools_.root, path, paper.url);
}

/// What text needs, before a publisher is asked for anything. Throws EnvironmentError
/// "no_pdftotext" or "box_unavailable".
void PaperFetcher::require_converter() {
  if (!converter_.empty()) return;
  const std::string& name = tools_.options.pdftotext;
  const std::string path = name.find('/') == name.npos
                               ? find_program(name)
                               : fs::absolute(name).lexically_normal().string();
  if (path.empty() || ::access(path.c_str(), X_OK) != 0) {
    throw EnvironmentError("no_pdftotext", name +
                                               " is not installed, and papers are read through it; "
                                               "install poppler-utils (apt install poppler-utils)");
  }
  require_box(BoxKind::kBwrap);
  converter_ = path;
}

/// A PDF is hostile input to a large parser: it is read in a box without network and without files,
/// from standard input to standard output.
std::string PaperFetcher::text_of(const std::string& pdf) const {
  const FetchOptions& options = tools_.options;
  const Fd input = open_regular(pdf);
  BoxSpec box;
  box.argv = {converter_, "-q", "-enc", "UTF-8", "-nopgbrk", "-", "-"};
  box.env = {{"LC_ALL", "C.UTF-8"}};
  if (!converter_.starts_with("/usr/")) box.mounts = {{converter_, converter_, false}};
  box.own_user = true;
  box.stdin_fd = input.get();
  box.tmp_bytes = kBoxTmp;
  box.limits.address_space = static_cast<uint64_t>(options.pdf_memory);
  box.limits.cpu_seconds = static_cast<uint64_t>(options.pdf_seconds) + 1;
  box.limits.processes = kBoxProcesses;
  box.limits.file_size = kBoxTmp;
  const RunResult result = run_in_box(BoxKind::kBwrap, box, options.pdf_seconds, kMaxText);
  if (result.timed_out) {
    throw EnvironmentError("pdf_timeout", "pdftotext did not end within its time and was killed");
  }
  if (!result.status.ok()) {
    throw EnvironmentError("pdf_text", "pdftotext failed (" + result.status.text() + ") " +
                                           printable(result.err, 200));
  }
  if (result.truncated) {
    throw EnvironmentError("pdf_text", "pdftotext wrote more than 32 MiB; such a text is refused");
  }
  return clean_text(result.out);
}

void PaperFetcher::fetch(const Paper& paper, const std::string& slug) {
  const std::string pdf = folder_ + "/pdf/" + slug + ".pdf";
  const std::string text = folder_ + "/text/" + slug + ".txt";
  const LockedFile* old_pdf = still_there(pdf, paper.url);
  const LockedFile* old_text = old_pdf != nullptr ? still_there(text, paper.url) : nullptr;
  if (old_text == nullptr) require_converter();
  const LockedFile pdf_file = old_pdf != nullptr ? *old_pdf : fetch_pdf(paper, pdf);
  locked_.files.push_back(pdf_file);
  std::string content;
  if (old_text != nullptr) {
    content = read_file(tools_.root + "/" + text);
  } else {
    content = text_of(tools_.root + "/" + pdf);
    make_directories(fs::path(tools_.root + "/" + text).parent_path());
    write_file_atomic(tools_.root + "/" + text, content, tools_.options.download.mode);
  }
  locked_.files.push_back(old_text != nullptr ? *old_text
                                              : describe_item_file(tools_.root, text, paper.url));
  const int64_t words = count_words(content);
  if (words == 0) locked_.problems.push_back(paper.title + ": the PDF holds no text (scanned?)");
  index_.push_back({{"title", paper.title},
                    {"file", "text/" + slug + ".txt"},
                    {"words", words},
                    {"url", paper.url},
                    {"pdf", "pdf/" + slug + ".pdf"},
                    {"pdf_sha256", pdf_file.sha256}});
}

void PaperFetcher::write_index() {
  std::string lines, list = "Papers as plain text; search with: grep -ril WORD text/\n\n";
  for (const Json& entry : index_) {
    lines += dump_json(entry) + "\n";
    list += entry["file"].get<std::string>() + "  " + entry["title"].get<std::string>() + " (" +
            std::to_string(entry["words"].get<int64_t>()) + " words)\n";
  }
  make_directories(tools_.root + "/" + folder_);
  for (const auto& [name, bytes] :
       {std::pair{"papers.jsonl", &lines}, std::pair{"INDEX.txt", &list}}) {
    const std::string path = folder_ + "/" + name;
    write_file_atomic(tools_.root + "/" + path, *bytes, tools_.options.download.mode);
    locked_.files.push_back(describe_item_file(tools_.root, path, "made by cbench fetch"));
  }
}

/// Not the fault of one paper: the next one would end the same way.
bool stops_all(const Error& error) {
  static const std::set<std::string, std::less<>> codes = {"interrupted", "disk_full", "no_space",
                                                           "no_pdftotext", "box_unavailable"};
  return codes.contains(error.code());
}

}  // namespace

void fetch_papers(const SourceTools& tools, const PapersItem& item, const std::string& path,
                  LockedItem& locked) {
  PaperFetcher fetcher(tools, path, locked);
  std::set<std::string> used;
  for (const Paper& paper : item.papers) {
    const std::string slug = slug_of(paper, used);
    try {
      fetcher.fetch(paper, slug);
    } catch (const Error& error) {
      if (stops_all(error)) throw;
      const std::string name = paper.title.empty() ? paper.url : paper.title;
      locked.problems.push_back(name + ": " + error.what() + " (" + paper.url + ")");
      spdlog::warn("{}", locked.problems.back());
    }
  }
  fetcher.write_index();
}

}  // namespace cbench
