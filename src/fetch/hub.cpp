#include "fetch/hub.h"

#include <algorithm>
#include <cstdlib>

#include "util/json.h"
#include "util/text.h"

namespace cbench {
namespace {

constexpr size_t kMaxFiles = 1'000'000;

std::string_view kind(const HubRepo& repo) {
  return repo.type == RepoType::kModel ? "models" : "datasets";
}

std::string web_path(const HubRepo& repo) {
  return (repo.type == RepoType::kModel ? "" : "datasets/") + repo.id;
}

/// rel="next" of a Link header (RFC 8288), or "".
std::string next_link(const HttpResponse& response) {
  for (const auto& [name, value] : response.headers.fields()) {
    if (name != "Link" && name != "link") continue;
    std::string_view rest = value;
    while (true) {
      const size_t open = rest.find('<');
      const size_t close = open == rest.npos ? rest.npos : rest.find('>', open);
      if (close == rest.npos) break;
      const std::string_view target = rest.substr(open + 1, close - open - 1);
      rest.remove_prefix(close + 1);
      const std::string_view parameters = rest.substr(0, rest.find('<'));
      if (parameters.find("rel=\"next\"") != rest.npos ||
          parameters.find("rel=next") != rest.npos) {
        return std::string(target);
      }
    }
  }
  return "";
}

bool is_hex(std::string_view text, size_t digits) {
  return text.size() == digits && text.find_first_not_of("0123456789abcdef") == text.npos;
}

HubFile parse_entry(const Json& entry, const std::string& source) {
  HubFile file;
  file.path = json_string(entry, "path", source);
  check_file_name(file.path);
  file.size = json_int(entry, "size", source);
  if (file.size < 0) throw UsageError("bad_listing", source + ": negative size of " + file.path);
  const auto lfs = entry.find("lfs");
  if (lfs != entry.end() && lfs->is_object()) {
    file.sha256 = json_string(*lfs, "oid", source);
    file.size = json_int(*lfs, "size", source);
    if (file.sha256.starts_with("sha256:")) file.sha256.erase(0, 7);
  } else {
    file.git_sha1 = json_string(entry, "oid", source);
  }
  const bool good = file.sha256.empty() ? is_hex(file.git_sha1, 40) : is_hex(file.sha256, 64);
  if (!good || file.size < 0) {
    throw UsageError("bad_listing",
                     source + ": no usable hash or size for " + printable(file.path));
  }
  return file;
}

/// Refuses a name twice, and a name that is both a file and the folder of another.
void check_no_collision(const std::vector<HubFile>& sorted, const std::string& source) {
  for (size_t i = 1; i < sorted.size(); ++i) {
    const std::string& before = sorted[i - 1].path;
    const std::string folder = before + "/";
    const auto under =
        std::lower_bound(sorted.begin(), sorted.end(), folder,
                         [](const HubFile& f, const std::string& p) { return f.path < p; });
    const bool is_folder = under != sorted.end() && under->path.starts_with(folder);
    if (before == sorted[i].path || is_folder) {
      throw UsageError("bad_listing",
                       source + ": the listing names " + printable(before) + " twice");
    }
  }
}

}  // namespace

void check_repo_id(const std::string& id) {
  const auto plain = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
           c == '_' || c == '.' || c == '/';
  };
  const size_t slash = id.find('/');
  const std::string name = slash == id.npos ? id : id.substr(slash + 1);
  const bool good = !name.empty() && slash != 0 && id.size() <= 192 &&
                    name.find('/') == name.npos && id.find("..") == id.npos &&
                    id.find("--") == id.npos && id[0] != '.' && name[0] != '.' &&
                    std::all_of(id.begin(), id.end(), plain);
  if (!good) {
    throw UsageError("bad_repo",
                     "\"" + printable(id) + "\" is not a repository id; expected org/name");
  }
}

namespace {

bool is_device_name(std::string_view component) {
  std::string stem(component.substr(0, component.find('.')));
  std::transform(stem.begin(), stem.end(), stem.begin(),
                 [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
  if (stem == "CON" || stem == "PRN" || stem == "AUX" || stem == "NUL") return true;
  return stem.size() == 4 && (stem.starts_with("COM") || stem.starts_with("LPT")) &&
         stem[3] >= '1' && stem[3] <= '9';
}

const char* fault_of_name(std::string_view path) {
  if (path.empty()) return "empty";
  if (path.size() > 1024) return "longer than 1024 bytes";
  if (!is_utf8(path)) return "not UTF-8";
  if (path.front() == '/') return "absolute";
  for (const char c : path) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) return "holds a control character";
    if (c == '\\') return "holds a backslash";
  }
  if (path.size() > 1 && path[1] == ':') return "a drive letter";
  for (size_t begin = 0; begin <= path.size();) {
    const size_t end = std::min(path.find('/', begin), path.size());
    const std::string_view component = path.substr(begin, end - begin);
    if (component.empty()) return "holds an empty component";
    if (component == "." || component == "..") return "holds a \".\" or \"..\" component";
    if (component.size() > 255) return "holds a component longer than 255 bytes";
    if (component.back() == '.' || component.back() == ' ') return "a component ends in '.' or ' '";
    if (is_device_name(component)) return "a reserved device name";
    if (component == ".cbench-fetch" || component == ".git") return "a reserved folder";
    begin = end + 1;
  }
  return nullptr;
}

}  // namespace

void check_file_name(std::string_view path) {
  if (const char* fault = fault_of_name(path); fault != nullptr) {
    throw UsageError("unsafe_name",
                     "file name refused (" + std::string(fault) + "): " + printable(path));
  }
}

bool glob_match(std::string_view pattern, std::string_view text) {
  size_t p = 0, t = 0, star = pattern.npos, mark = 0;
  while (t < text.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      mark = t;
    } else if (p < pattern.size() && (pattern[p] == '?' || pattern[p] == text[t])) {
      ++p, ++t;
    } else if (star != pattern.npos) {
      p = star + 1;
      t = ++mark;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

bool is_commit(std::string_view text) { return is_hex(text, 40); }

std::string Hub::api_url(const HubRepo& repo, std::string_view rest) const {
  return options_.endpoint + "/api/" + std::string(kind(repo)) + "/" + repo.id + "/" +
         std::string(rest);
}

std::string Hub::file_url(const HubRepo& repo, const std::string& commit,
                          const std::string& path) const {
  return options_.endpoint + "/" + web_path(repo) + "/resolve/" + commit + "/" +
         url_encode(path, "/");
}

HttpResponse Hub::get_json(const std::string& url) {
  HttpRequest request;
  request.url = url;
  request.token = options_.token;
  request.redirects = Redirects::kAll;
  request.headers = {{"Accept", "application/json"}};
  return client_.send(request);
}

namespace {
Json parse_answer(const HttpResponse& response, const std::string& what,
                  const HubOptions& options) {
  const std::string type = response.headers.get("Content-Type");
  const size_t start = response.body.find_first_not_of(" \t\r\n");
  const bool looks_json =
      start != std::string::npos && (response.body[start] == '{' || response.body[start] == '[');
  if (!looks_json) {
    throw EnvironmentError("not_json",
                           what + ": " + options.endpoint + " answered " +
                               (type.empty() ? "something" : printable(type)) +
                               " instead of JSON; not a Hub endpoint, or a login page or "
                               "proxy in between (HF_ENDPOINT, https_proxy)");
  }
  return parse_json(response.body, what);
}
}  // namespace

std::string Hub::resolve_revision(const HubRepo& repo, const std::string& revision) {
  check_repo_id(repo.id);
  const std::string what = repo.id + " at " + printable(revision);
  const HttpResponse response = get_json(api_url(repo, "revision/" + url_encode(revision)));
  if (!response.ok()) throw_hub_error(response, what, options_, repo);
  const Json answer = parse_answer(response, what, options_);
  const auto sha = answer.is_object() ? answer.find("sha") : answer.end();
  if (sha == answer.end() || !sha->is_string() || !is_commit(sha->get<std::string>())) {
    throw EnvironmentError("not_hub",
                           what + ": " + options_.endpoint +
                               " did not name a commit; not a Hub endpoint (HF_ENDPOINT)");
  }
  return sha->get<std::string>();
}

std::vector<HubFile> Hub::list_files(const HubRepo& repo, const std::string& commit) {
  const std::string what = "file list of " + repo.id;
  std::string url = api_url(repo, "tree/" + commit + "?recursive=true&expand=false");
  const Origin origin = parse_origin(url);
  std::vector<HubFile> files;
  size_t pages = 0;
  while (!url.empty()) {
    const HttpResponse response = get_json(url);
    if (!response.ok()) throw_hub_error(response, what, options_, repo);
    const Json page = parse_answer(response, what, options_);
    if (!page.is_array()) throw UsageError("bad_listing", what + ": expected a list");
    for (const Json& entry : page) {
      const std::string type = json_string(entry, "type", what);
      if (type == "file") files.push_back(parse_entry(entry, what));
    }
    if (files.size() > kMaxFiles || ++pages > kMaxFiles / 10) {
      throw UsageError("bad_listing", what + ": more than a million files or endless pages");
    }
    const std::string next = next_link(response);
    if (next.empty()) break;
    const std::string resolved = resolve_url(response.url, next);
    if (parse_origin(resolved) != origin) {
      throw EnvironmentError("foreign_link", what + ": the next page is on another server (" +
                                                 parse_origin(resolved).host + "); refused");
    }
    if (resolved == url) throw UsageError("bad_listing", what + ": the next page is the same page");
    url = resolved;
  }
  std::sort(files.begin(), files.end(),
            [](const HubFile& a, const HubFile& b) { return a.path < b.path; });
  check_no_collision(files, what);
  return files;
}

HubMetadata Hub::metadata(const HubRepo& repo, const std::string& commit, const std::string& path) {
  check_file_name(path);
  const std::string what = repo.id + "/" + path;
  HttpRequest request;
  request.method = "HEAD";
  request.url = file_url(repo, commit, path);
  request.token = options_.token;
  request.redirects = Redirects::kSameOrigin;
  HttpResponse response = client_.send(request);
  // A mirror that moved (no Hub headers on the redirect): follow it, without the token.
  if (response.status / 100 == 3 && response.headers.find("X-Repo-Commit") == nullptr &&
      response.headers.find("X-Linked-Etag") == nullptr) {
    request.redirects = Redirects::kAll;
    response = client_.send(request);
  }
  const bool redirected =
      response.status / 100 == 3 && response.headers.find("Location") != nullptr;
  if (!response.ok() && !redirected) throw_hub_error(response, what, options_, repo);
  HubMetadata meta;
  meta.commit = response.headers.get("X-Repo-Commit");
  if (!is_commit(meta.commit)) {
    throw EnvironmentError("not_hub", what + ": the answer of " + options_.endpoint +
                                          " lacks X-Repo-Commit; not a Hub endpoint (HF_ENDPOINT)");
  }
  const std::string* linked = response.headers.find("X-Linked-Etag");
  meta.etag = linked != nullptr ? *linked : response.headers.get("ETag");
  if (meta.etag.starts_with("W/")) meta.etag.erase(0, 2);
  std::erase(meta.etag, '"');
  auto size = response.headers.number("X-Linked-Size");
  if (!size && !redirected) size = response.headers.number("Content-Length");
  meta.size = size.value_or(-1);
  if (redirected) meta.location = resolve_url(response.url, response.headers.get("Location"));
  meta.xet_hash = response.headers.get("X-Xet-Hash");
  return meta;
}

void throw_hub_error(const HttpResponse& response, const std::string& what,
                     const HubOptions& options, const HubRepo& repo) {
  const std::string code = response.headers.get("X-Error-Code");
  std::string message = printable(response.headers.get("X-Error-Message"), 500);
  const int status = response.status;
  const std::string page = options.endpoint + "/" + web_path(repo);
  const auto fail = [&](std::string_view word, const std::string& text) {
    throw EnvironmentError(word, what + ": " + text);
  };
  const bool denied = status == 401 || status == 403;
  if (denied && (message.find("Invalid credentials") != message.npos ||
                 response.body.find("Invalid credentials in Authorization") != std::string::npos)) {
    fail("bad_token", "the token is not valid; make a new one at " + options.endpoint +
                          "/settings/tokens and set HF_TOKEN, or unset it for public files");
  }
  if (code == "GatedRepo") {
    const std::string step = "accept the licence at " + page;
    fail("gated", options.token.empty()
                      ? "gated; " + step + ", then set HF_TOKEN to a token of that account"
                      : "gated, and the account of this HF_TOKEN has no access; " + step +
                            " with it (approval may take time)");
  }
  if (code == "RevisionNotFound")
    fail("revision_not_found", "there is no such branch, tag or commit");
  if (code == "EntryNotFound") fail("entry_not_found", "there is no such file at this revision");
  if (status == 403 && !message.empty()) fail("forbidden", message);
  if (code == "RepoNotFound" || status == 401 || (status == 404 && code.empty())) {
    fail("repo_not_found",
         std::string("missing, private or gated (the Hub does not say which); check "
                     "the name at ") +
             page + ", " +
             (options.token.empty() ? "set HF_TOKEN" : "check what this HF_TOKEN may read"));
  }
  if (status == 403) fail("forbidden", "access refused (403)");
  if (status == 429) {
    const auto wait = server_wait(response);
    fail("rate_limited",
         "too many requests (429)" +
             (wait ? "; try again in " + std::to_string(static_cast<int64_t>(*wait)) + " s"
                   : std::string()) +
             (options.token.empty() ? "; with HF_TOKEN set the limits are higher" : ""));
  }
  if (status >= 500)
    fail("server_error",
         "the server failed (" + std::to_string(status) + ") on every try; try later");
  if (message.empty()) message = printable(response.body, 200);
  fail("http", "HTTP " + std::to_string(status) + " from " + options.endpoint + ": " + message);
  std::abort();  // fail always throws
}

std::vector<std::string> cached_candidates(const std::string& cache, const HubRepo& repo,
                                           const std::string& commit, const HubFile& file) {
  if (cache.empty()) return {};
  std::string folder = repo.type == RepoType::kModel ? "models--" : "datasets--";
  for (const char c : repo.id) folder += c == '/' ? std::string("--") : std::string(1, c);
  const std::string base = cache + "/" + folder;
  const std::string& blob = file.sha256.empty() ? file.git_sha1 : file.sha256;
  return {base + "/blobs/" + blob, base + "/snapshots/" + commit + "/" + file.path};
}

}  // namespace cbench
