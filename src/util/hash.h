// SHA-256 and SHA-1 of streams and strings (OpenSSL EVP).
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace cbench {

/// Incremental digest. `hex()` finishes it; use a new object for the next stream.
class Hasher {
 public:
  enum class Kind { kSha256, kSha1 };
  explicit Hasher(Kind kind = Kind::kSha256);
  ~Hasher();
  Hasher(Hasher&&) noexcept;
  Hasher& operator=(Hasher&&) noexcept;

  void update(std::string_view bytes);
  std::string hex();  ///< lower-case hexadecimal digest of what came so far; more may follow

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// SHA-256 of `bytes`, 64 lower-case hexadecimal digits.
std::string sha256_hex(std::string_view bytes);

/// SHA-256 of a regular file's bytes, read in blocks. Throws EnvironmentError if it cannot be read.
std::string sha256_file(const std::string& path);

}  // namespace cbench
