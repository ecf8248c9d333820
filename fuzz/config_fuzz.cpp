// Fuzzes config.json: any bytes are either refused with an error or give a model whose shapes are
// positive and whose matrices have names of their own.
#include <cstdlib>
#include <set>
#include <string_view>

#include "model/config.h"
#include "util/error.h"

namespace {

void check(const cbench::ModelConfig& config) {
  std::set<std::string> names;
  for (const cbench::MatrixShape& matrix : cbench::model_matrices(config)) {
    if (matrix.name.empty() || matrix.rows < 1 || matrix.cols < 1 || matrix.experts < 1 ||
        matrix.elements() < 1 || matrix.active > matrix.experts ||
        !names.insert(matrix.name).second) {
      std::abort();
    }
  }
  for (const cbench::BlockConfig& block : config.blocks) {
    if (block.mixer == cbench::MixerKind::kNone && block.mlp.width == 0) std::abort();
    if (2 * block.attention.rope.turning > block.attention.rope.rotary) std::abort();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  try {
    check(cbench::parse_model_config({reinterpret_cast<const char*>(bytes), size}, "fuzz"));
  } catch (const cbench::UsageError&) {
  }
  return 0;
}
