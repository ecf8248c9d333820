// Fuzzes config.json of a model: any bytes are either refused with an error or give a model whose
// matrices have sane shapes.
#include <cstdlib>
#include <string_view>

#include "model/config.h"
#include "util/error.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  try {
    const cbench::ModelConfig config =
        cbench::parse_model_config({reinterpret_cast<const char*>(bytes), size}, "fuzz");
    for (const cbench::MatrixShape& matrix : cbench::model_matrices(config)) {
      if (matrix.name.empty() || matrix.rows < 1 || matrix.cols < 1) std::abort();
    }
  } catch (const cbench::Error&) {
    // A clear refusal is the expected outcome.
  }
  return 0;
}
