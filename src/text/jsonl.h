// JSON lines from .jsonl, .jsonl.gz and .jsonl.zst files, one line at a time in constant memory.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace cbench {

class ByteStream;

class JsonlReader {
 public:
  static constexpr uint64_t kDefaultMaxLine = 64u << 20;

  /// Throws EnvironmentError if the file cannot be opened.
  explicit JsonlReader(const std::string& path, uint64_t max_line = kDefaultMaxLine);
  ~JsonlReader();
  JsonlReader(JsonlReader&&) noexcept;
  JsonlReader& operator=(JsonlReader&&) noexcept;

  /// The next line that is not blank, without its line end ("\n" or "\r\n"); false at the end. The
  /// view is valid until the next call. Parse it with parse_json(line, reader.where()). Throws
  /// UsageError that names file and line: "line_too_long", "utf8", "compressed".
  bool next(std::string_view& line);

  /// Number of the line that next() returned last, from 1.
  uint64_t line_number() const { return line_number_; }
  /// "path:12" for messages about that line.
  std::string where() const { return path_ + ":" + std::to_string(line_number_); }

 private:
  bool read_line();
  bool refill();

  std::string path_;
  uint64_t max_line_;
  std::unique_ptr<ByteStream> stream_;
  std::string buffer_;  ///< what was read and not yet consumed starts at consumed_
  size_t consumed_ = 0;
  std::string_view line_;
  uint64_t line_number_ = 0;
  bool at_end_ = false;
};

}  // namespace cbench
