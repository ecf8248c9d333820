// One file of a download: its part, its pending ranges and its checks. Used by download.cpp only.
#pragma once

#include <atomic>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "fetch/download.h"

namespace cbench {

/// Thrown inside a transfer: what is there cannot be continued; the file starts again, once per
/// cause.
struct StartAgain {
  enum class Cause { kRangeIgnored, kRangeRefused, kWrongHash, kWrongSize, kChanged };
  Cause cause;
  std::string message;  ///< reported if it happens again
  std::string code;
};

class FileJob {
 public:
  FileJob(const Download& file, const std::string& work, HttpContext& context,
          const DownloadOptions& options, std::atomic<int64_t>& bytes_in_place);

  /// Existing file or local copy with the right content: true, nothing to transfer.
  bool satisfied_locally();
  void open_part();

  /// The next range to fetch, if another connection can help now.
  std::optional<ByteRange> take();
  bool may_have_more() const;  ///< ranges may become available later
  /// Fetches one range to its end, with retries. Throws on failure of the whole file.
  void fetch(HttpClient& client, ByteRange range);
  /// After fetch(), or after open_part(): true if this caller must now finish() the file.
  bool release();
  bool complete() const;
  /// Proves and publishes; false: the content was wrong for the first time and is fetched again.
  bool finish();

  const Downloaded& result() const { return result_; }

 private:
  friend class RangeStream;
  void transfer(HttpClient& client, ByteRange& range, HttpResponse& answer);
  HttpRequest request_for(const ByteRange& range);
  void judge_error(const HttpResponse& response, bool ranged, bool direct);
  void start_again(StartAgain why);
  void restart_part();
  void fill_todo();
  bool room_for_another() const;
  bool proved(const Digests& digests) const;
  bool copy_from(const std::string& source);
  void record(DownloadSource source, int64_t size, Digests digests);

  const Download& file_;
  std::string work_;
  HttpContext& context_;
  const DownloadOptions& options_;
  std::atomic<int64_t>& bytes_in_place_;
  std::unique_ptr<PartFile> part_;
  std::unique_ptr<HashFollower> hash_;

  mutable std::mutex mutex_;
  std::deque<ByteRange> todo_;
  int active_ = 0;
  bool parallel_ = false;     ///< the server proved to serve ranges
  double started_at_ = 0;     ///< boot seconds of the first transfer
  int64_t started_with_ = 0;  ///< bytes that were there then
  bool ranges_ = true;        ///< false: only whole-body requests
  std::optional<StartAgain> again_;
  std::vector<StartAgain::Cause> causes_;
  std::string direct_url_;  ///< the signed address a redirect led to
  int64_t size_ = -1;       ///< as known by now
  Downloaded result_;
};

}  // namespace cbench
