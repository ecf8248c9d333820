// The Hugging Face Hub protocol, read only: revisions, listings, file addresses, the meaning of its
// errors, and the files its Python client already left in the user's cache.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "fetch/http.h"

namespace cbench {

/// Reads an environment variable; tests pass their own.
using Environment = std::function<std::optional<std::string>(const std::string&)>;
Environment process_environment();

struct HubOptions {
  std::string endpoint = "https://huggingface.co";
  std::string rows_endpoint = "https://datasets-server.huggingface.co";
  std::string token;  ///< "" = anonymous
  std::string cache;  ///< the Python client's cache folder; "" = do not look
  bool offline = false;
};

/// HF_ENDPOINT, HF_TOKEN > HF_TOKEN_PATH > $HF_HOME/token, HF_HUB_CACHE > $HF_HOME/hub >
/// $XDG_CACHE_HOME/huggingface/hub > ~/.cache/huggingface/hub, HF_HUB_OFFLINE,
/// TRANSFORMERS_OFFLINE, HF_HUB_DISABLE_IMPLICIT_TOKEN. Empty = unset. Throws UsageError
/// "bad_token" or "bad_endpoint".
HubOptions hub_options_from(const Environment& environment);
/// 1, ON, YES, TRUE in any case.
bool is_true(std::string_view text);

enum class RepoType { kModel, kDataset };

struct HubRepo {
  RepoType type = RepoType::kModel;
  std::string id;  ///< "org/name" or "name"
};

struct HubFile {
  std::string path;
  int64_t size = 0;
  std::string sha256;    ///< of an LFS or Xet file
  std::string git_sha1;  ///< else the git blob id
};

/// What HEAD on a file tells.
struct HubMetadata {
  std::string commit;
  std::string etag;  ///< sha256 for LFS and Xet, else the git blob id
  int64_t size = -1;
  std::string location;  ///< signed address on another host, "" = served here
  std::string xet_hash;  ///< informative: the plain bridge serves Xet files, too
};

/// Throws UsageError "bad_repo" unless [org/]name of letters, digits, '-', '_', '.'.
void check_repo_id(const std::string& id);
/// Throws UsageError "unsafe_name" for names that could leave the folder or mean another file on
/// some system: absolute, "..", ".", empty components, backslash, control characters, drive
/// letters, device names, over-long.
void check_file_name(std::string_view path);
/// '*' matches within and across '/', '?' one character, as in fnmatch without flags.
bool glob_match(std::string_view pattern, std::string_view text);
bool is_commit(std::string_view text);  ///< 40 lower-case hexadecimal digits

class Hub {
 public:
  Hub(HttpClient& client, HubOptions options) : client_(client), options_(std::move(options)) {}
  const HubOptions& options() const { return options_; }

  /// Branch, tag or commit to a 40-hex commit.
  std::string resolve_revision(const HubRepo& repo, const std::string& revision);
  /// Every file at `commit`, sorted by path; all names checked.
  std::vector<HubFile> list_files(const HubRepo& repo, const std::string& commit);
  HubMetadata metadata(const HubRepo& repo, const std::string& commit, const std::string& path);
  std::string file_url(const HubRepo& repo, const std::string& commit,
                       const std::string& path) const;

 private:
  std::string api_url(const HubRepo& repo, std::string_view rest) const;
  HttpResponse get_json(const std::string& url);

  HttpClient& client_;
  HubOptions options_;
};

/// Throws what an error answer means, with the next step. Codes: gated, repo_not_found,
/// revision_not_found, entry_not_found, bad_token, forbidden, rate_limited, server_error, http.
[[noreturn]] void throw_hub_error(const HttpResponse& response, const std::string& what,
                                  const HubOptions& options, const HubRepo& repo = {});

/// Paths in the Python client's cache that may hold this file, most likely first. Names prove
/// nothing: verify the content.
std::vector<std::string> cached_candidates(const std::string& cache, const HubRepo& repo,
                                           const std::string& commit, const HubFile& file);

}  // namespace cbench
