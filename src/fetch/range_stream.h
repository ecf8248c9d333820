// The body of one answer on its way into a part file: checks the answer's promises before a byte is
// written, gathers small blocks, never writes beyond what was asked. Used by file_job.cpp only.
#pragma once

#include <string>
#include <string_view>

#include "fetch/file_job.h"

namespace cbench {

inline constexpr std::string_view kLfsPointerStart = "version https://git-lfs.github.com/spec";

class RangeStream {
 public:
  /// `range.begin` follows what is written. `ranged`: the request had a Range header.
  RangeStream(FileJob& job, ByteRange& range, bool ranged)
      : job_(job), range_(range), ranged_(ranged) {}

  /// Throws StartAgain when the answer cannot continue the part.
  void take(const HttpResponse& head, std::string_view bytes);
  void flush();
  /// After a complete 2xx answer. Throws TransferError (retryable) when bytes are missing.
  void end(const HttpResponse& head);

 private:
  void begin(const HttpResponse& head, std::string_view first);
  void begin_partial(const HttpResponse& head, bool encoded);
  void begin_whole(const HttpResponse& head, bool encoded, std::string_view first);

  FileJob& job_;
  ByteRange& range_;
  bool ranged_;
  bool begun_ = false;
  std::string buffer_;
};

}  // namespace cbench
