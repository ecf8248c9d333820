// A file on its way to disk: which byte ranges are there, kept so that another process can go on,
// and the hash of its growing prefix.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "util/file.h"
#include "util/hash.h"

namespace cbench {

struct ByteRange {
  int64_t begin = 0;
  int64_t end = 0;  ///< exclusive
  int64_t size() const { return end - begin; }
  bool operator==(const ByteRange&) const = default;
};

/// Disjoint, merged ranges.
class RangeSet {
 public:
  void add(ByteRange range);
  void clear() { ranges_.clear(); }
  void cut(int64_t size);  ///< forgets everything from `size` on
  int64_t end() const { return ranges_.empty() ? 0 : ranges_.rbegin()->second; }
  int64_t total() const;
  /// End of the range that starts at 0.
  int64_t prefix() const;
  /// What [0, size) lacks, cut into pieces of at most `piece` bytes.
  std::vector<ByteRange> missing(int64_t size, int64_t piece) const;
  std::vector<ByteRange> ranges() const;

 private:
  std::map<int64_t, int64_t> ranges_;  // begin -> end
};

/// What the bytes must belong to for a part file to be continued.
struct PartIdentity {
  std::string content;  ///< "sha256:<hex>", "git:<hex>", or "url:<address>"
  std::string
      validator;      ///< strong ETag where the content has no hash, a BatchFile's progress, or ""
  int64_t size = -1;  ///< -1 unknown
  std::string name;   ///< where the file goes: equal contents at two places do not share a part
};

/// A folder <work>/<key> (at rest) or <work>/<key>.<owner> (in use) with `data` and `state.json`.
/// The owner is a process; taking over is one rename, so two processes never write the same part
/// and no file locks are needed. What a killed process left is taken over by the next.
class PartFile {
 public:
  PartFile(const std::string& work, const PartIdentity& identity);
  /// Puts the part back at rest with its state, or removes it if it holds nothing.
  ~PartFile();
  PartFile(const PartFile&) = delete;
  PartFile& operator=(const PartFile&) = delete;

  /// Thread-safe for disjoint ranges. Throws EnvironmentError "disk_full" or "io".
  void write(int64_t offset, std::string_view bytes);
  int64_t prefix() const;
  int64_t total() const;
  std::vector<ByteRange> missing(int64_t size, int64_t piece) const;
  const std::string& validator() const { return identity_.validator; }
  void set_validator(const std::string& validator);
  /// At most every second unless forced. Failures are not fatal: the state before still holds.
  bool save(bool force = false);
  void restart();          ///< forgets everything
  void cut(int64_t size);  ///< forgets what comes after, on disk too
  int fd() const { return fd_.get(); }
  const std::string& data_path() const { return data_; }
  /// Sets the mode, makes it durable, moves it to `path` atomically, drops the state.
  void publish(const std::string& path, mode_t mode);

 private:
  void adopt(const std::string& work, const std::string& key);
  bool load_state();

  PartIdentity identity_;
  std::string rest_, folder_, data_;
  Fd fd_;
  mutable std::mutex mutex_;
  RangeSet have_;
  double saved_at_ = 0;
  bool published_ = false;
};

/// Digests of a file, as needed.
struct Digests {
  std::string sha256;
  std::string git_sha1;  ///< of the git blob with this content; "" unless asked
};

/// Hashes a growing file in order, on a thread of its own, reading back what has become complete
/// from its start (from the page cache): parts may arrive in any order, and a resumed file costs no
/// extra pass before its download goes on.
class HashFollower {
 public:
  HashFollower(int fd, std::string subject, int64_t git_size);  ///< git_size < 0: no git hash
  ~HashFollower();
  void advance(int64_t prefix);
  /// Waits until `size` bytes are hashed. Throws what reading threw.
  Digests finish(int64_t size);

 private:
  void follow();
  void fail(const std::string& message);

  int fd_;
  std::string subject_;
  std::unique_ptr<Hasher> sha256_, git_;
  std::mutex mutex_;
  std::condition_variable changed_;
  int64_t available_ = 0, hashed_ = 0, target_ = -1;
  bool stop_ = false;
  std::exception_ptr failure_;
  std::thread thread_;
};

/// Hashes a whole regular file. `stop` is asked now and then; true throws "interrupted".
Digests hash_file(const std::string& path, bool git, const std::function<bool()>& stop = {});

}  // namespace cbench
