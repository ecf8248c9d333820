// Fuzzes contract.yaml: any bytes are either refused with an error or give a contract whose
// canonical text loads to the same contract.
#include <cstdlib>
#include <filesystem>
#include <string>
#include <string_view>

#include <unistd.h>

#include "task/contract.h"
#include "util/error.h"
#include "util/file.h"

namespace {

/// A task directory in memory, one per process.
const std::string& task_directory() {
  static const std::string path = [] {
    const std::string name = "tiny_2.5m_standard_cpu";
    const std::string made = "/dev/shm/cbench-fuzz-" + std::to_string(::getpid()) + "/" + name;
    std::filesystem::create_directories(made);
    return made;
  }();
  return path;
}

cbench::Contract load(std::string_view text) {
  const std::string path = task_directory() + "/contract.yaml";
  cbench::write_file_atomic(path, std::string(text));
  return cbench::load_contract(path);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  std::string canonical;
  try {
    canonical = load({reinterpret_cast<const char*>(bytes), size}).text;
  } catch (const cbench::Error&) {
    return 0;  // a clear refusal is the expected outcome
  }
  if (load(canonical).text != canonical) std::abort();
  return 0;
}
