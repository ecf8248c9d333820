#include "fetch/batch_file.h"

#include <algorithm>

#include <unistd.h>

#include "util/error.h"
#include "util/json.h"
#include "util/log.h"

namespace cbench {
namespace {

constexpr int64_t kBlock = 1 << 20;

/// False when the file is shorter.
bool read_prefix(int fd, int64_t size, const std::function<void(std::string_view)>& use) {
  std::string block(static_cast<size_t>(std::min(size, kBlock)), '\0');
  for (int64_t at = 0; at < size;) {
    const auto wanted = static_cast<size_t>(std::min(kBlock, size - at));
    const ssize_t n = ::pread(fd, block.data(), wanted, at);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    use({block.data(), static_cast<size_t>(n)});
    at += n;
  }
  return true;
}

}  // namespace

BatchFile::BatchFile(const std::string& work, const std::string& kind, const std::string& key,
                     const std::string& path, std::string source)
    : part_(work, {kind + ":" + sha256_hex(key), "", -1, path}), source_(std::move(source)) {
  if (resume()) {
    part_.cut(size_);
    spdlog::info("{}: continues after {} bytes", path, size_);
    return;
  }
  part_.restart();
  size_ = 0;
  note_.clear();
  hash_ = Hasher();
}

bool BatchFile::resume() {
  if (part_.validator().empty()) return false;
  std::string digest;
  try {
    const Json state = parse_json(part_.validator(), "progress");
    if (json_string(state, "source", "progress") != source_) return false;
    size_ = json_int(state, "bytes", "progress");
    note_ = json_string(state, "note", "progress");
    digest = json_string(state, "sha256", "progress");
  } catch (const Error&) {  // not ours
    return false;
  }
  return size_ >= 0 && size_ <= part_.prefix() &&
         read_prefix(part_.fd(), size_, [&](std::string_view block) { hash_.update(block); }) &&
         hash_.hex() == digest;
}

void BatchFile::read(const std::function<void(std::string_view)>& use) const {
  if (!read_prefix(part_.fd(), size_, use)) {
    throw EnvironmentError("io", part_.data_path() + ": shorter than a moment ago");
  }
}

void BatchFile::append(std::string_view bytes, const std::string& note) {
  try {
    part_.write(size_, bytes);
  } catch (...) {
    part_.cut(size_);
    throw;
  }
  size_ += static_cast<int64_t>(bytes.size());
  note_ = note;
  hash_.update(bytes);
  part_.set_validator(
      dump_json({{"source", source_}, {"bytes", size_}, {"sha256", hash_.hex()}, {"note", note_}}));
  part_.save(/*force=*/true);  // a failure only means that the batch before is the last one kept
}

}  // namespace cbench
