// Downloads many files at once into their places: several connections, parts of big files in
// parallel, every byte hashed, resumed across processes, published only when proved right.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "fetch/http.h"
#include "fetch/part_file.h"

namespace cbench {

/// One file to fetch. At most one of the two hashes is given; with none, the content is trusted as
/// the server sent it (and the report says so).
struct Download {
  std::string url;
  std::string token;
  std::string path;              ///< final, absolute
  std::string name;              ///< relative, as people see it
  int64_t size = -1;             ///< -1 unknown
  int64_t max_size = INT64_MAX;  ///< of a file of unknown size
  std::string sha256;
  std::string git_sha1;
  std::vector<std::string> copies;  ///< local files that may have this content; verified before use
  bool keep_existing = true;        ///< a file already at `path` is kept if its hash is right
  /// Throws what an error answer means; empty = a plain message.
  std::function<void(const HttpResponse&)> fail;
};

enum class DownloadSource { kNetwork, kResumed, kCopied, kExisting };

struct Downloaded {
  bool done = false;
  int64_t size = 0;
  Digests digests;
  int64_t mtime_ns = 0;
  DownloadSource source = DownloadSource::kNetwork;
  int64_t received = 0;  ///< bytes over the network
};

struct DownloadOptions {
  int connections = 4;
  int64_t part_size = 64 << 20;   ///< a longer file is fetched in ranges of this size
  int64_t follow_size = 8 << 20;  ///< a file at least this long is hashed while it arrives
  bool use_copies = true;
  bool offline = false;  ///< a file that is not here already is an error ("offline")
  mode_t mode = 0444;    ///< of finished files: content is never rewritten in place
};

/// Called from one thread now and then: bytes in place so far, files done.
using DownloadProgress = std::function<void(int64_t bytes, size_t files)>;
/// Called (serialised) when a file is in place.
using DownloadDone = std::function<void(size_t index, const Downloaded&)>;

/// Fetches all or throws the first failure after stopping the rest; whatever arrived stays in
/// `work` (on the same file system as the targets) for the next try. Codes besides those of HTTP
/// and of `fail`: wrong_size, wrong_hash, lfs_pointer, disk_full, interrupted.
std::vector<Downloaded> download_all(const std::vector<Download>& files, const std::string& work,
                                     HttpContext& context, const DownloadOptions& options,
                                     const DownloadProgress& progress = {},
                                     const DownloadDone& done = {});

/// Throws EnvironmentError "no_space" when the file system of `path` (or its nearest existing
/// parent) has fewer than `bytes` free.
void check_free_space(const std::string& path, int64_t bytes);

/// "bytes 0-99/1234" to {range, total or -1}; false when malformed.
bool parse_content_range(std::string_view text, ByteRange& range, int64_t& total);

}  // namespace cbench
