// Decompression: whole zstd buffers with a bound, and streams of plain, gzip or zstd files.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace cbench {

/// All frames of `bytes`. Throws UsageError "compressed" for damaged, truncated or trailing data,
/// "too_large" when the content would pass `max_bytes`; `source` names the input.
std::string zstd_decompress(std::string_view bytes, uint64_t max_bytes, std::string_view source);

/// The decompressed bytes of a file, in constant memory. The file's name tells the format: .gz,
/// .zst, else plain.
class ByteStream {
 public:
  virtual ~ByteStream() = default;
  /// Up to `size` bytes; 0 at the end. Throws UsageError "compressed" for damaged data.
  virtual size_t read(char* to, size_t size) = 0;

  /// Throws EnvironmentError if the file cannot be read.
  static std::unique_ptr<ByteStream> open(const std::string& path);
};

}  // namespace cbench
