// Fuzzes the safetensors reader: any bytes are either refused with an error or give tensors whose
// ranges tile the data exactly.
#include <cstdlib>
#include <string_view>

#include "package/safetensors.h"
#include "util/error.h"

namespace {

void check(const cbench::ParsedTensors& parsed, std::string_view file) {
  size_t data = 0;
  const char* expected = nullptr;
  for (const cbench::Tensor& tensor : parsed.tensors) {
    const uint64_t bits =
        static_cast<uint64_t>(tensor.elements()) * static_cast<uint64_t>(dtype_bits(tensor.dtype));
    if (bits != 8 * tensor.bytes.size()) std::abort();
    if (expected != nullptr && tensor.bytes.data() != expected) std::abort();
    expected = tensor.bytes.data() + tensor.bytes.size();
    data += tensor.bytes.size();
    for (const char byte : tensor.bytes) {
      volatile char touched = byte;  // the sanitizer sees a range that leaves the input
      (void)touched;
    }
  }
  if (expected != nullptr && expected != file.data() + file.size()) std::abort();
  if (data > file.size()) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  const std::string_view file(reinterpret_cast<const char*>(bytes), size);
  try {
    check(cbench::parse_safetensors(file, "fuzz"), file);
  } catch (const cbench::UsageError&) {
  }
  return 0;
}
