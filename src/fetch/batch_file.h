// A file made of batches, each there as a whole or not at all: a fetch that was killed goes on
// after the last one.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "fetch/part_file.h"
#include "util/hash.h"

namespace cbench {

/// A PartFile that only grows at its end. Its state says how far the whole batches reach, their
/// SHA-256, what they were made from, and the writer's note. Whatever does not fit together starts
/// again. Not thread-safe.
class BatchFile {
 public:
  /// `kind` and `key` name what was asked for, `path` where it goes, `source` what it is made from
  /// (a commit): batches of another source are forgotten.
  BatchFile(const std::string& work, const std::string& kind, const std::string& key,
            const std::string& path, std::string source);

  int64_t size() const { return size_; }             ///< bytes of the whole batches
  const std::string& note() const { return note_; }  ///< of the last batch; "" before the first
  /// The whole batches again, in blocks.
  void read(const std::function<void(std::string_view)>& use) const;

  /// Adds a batch, possibly empty; when this returns, a kill no longer loses it. Throws
  /// EnvironmentError "disk_full" or "io"; the batches before stay.
  void append(std::string_view bytes, const std::string& note);
  void publish(const std::string& path, mode_t mode) { part_.publish(path, mode); }

 private:
  bool resume();

  PartFile part_;
  std::string source_, note_;
  int64_t size_ = 0;
  Hasher hash_;
};

}  // namespace cbench
