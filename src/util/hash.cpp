#include "util/hash.h"

#include <array>
#include <vector>

#include <openssl/evp.h>

#include "util/error.h"
#include "util/file.h"

namespace cbench {

struct Hasher::Impl {
  EVP_MD_CTX* context = EVP_MD_CTX_new();
  ~Impl() { EVP_MD_CTX_free(context); }
};

Hasher::Hasher(Kind kind) : impl_(std::make_unique<Impl>()) {
  const EVP_MD* digest = kind == Kind::kSha256 ? EVP_sha256() : EVP_sha1();
  if (impl_->context == nullptr || EVP_DigestInit_ex(impl_->context, digest, nullptr) != 1) {
    throw EnvironmentError("hash", "OpenSSL could not start a digest");
  }
}
Hasher::~Hasher() = default;
Hasher::Hasher(Hasher&&) noexcept = default;
Hasher& Hasher::operator=(Hasher&&) noexcept = default;

void Hasher::update(std::string_view bytes) {
  EVP_DigestUpdate(impl_->context, bytes.data(), bytes.size());
}

std::string Hasher::hex() {
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest;
  unsigned int size = 0;
  const Impl copy;
  if (copy.context == nullptr || EVP_MD_CTX_copy_ex(copy.context, impl_->context) != 1) {
    throw EnvironmentError("hash", "OpenSSL could not copy a digest");
  }
  EVP_DigestFinal_ex(copy.context, digest.data(), &size);
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string out;
  out.reserve(2 * size);
  for (unsigned int i = 0; i < size; ++i) {
    out += kDigits[digest[i] >> 4];
    out += kDigits[digest[i] & 15];
  }
  return out;
}

std::string sha256_hex(std::string_view bytes) {
  Hasher hasher;
  hasher.update(bytes);
  return hasher.hex();
}

std::string sha256_file(const std::string& path) {
  Fd fd = open_regular(path);
  Hasher hasher;
  std::vector<char> block(1 << 20);
  while (true) {
    const size_t n = read_some(fd, block.data(), block.size(), path);
    if (n == 0) return hasher.hex();
    hasher.update({block.data(), n});
  }
}

}  // namespace cbench
