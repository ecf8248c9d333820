// Starter plugin: group-quantized matrices, dequantize only. Copy it and make it better.
//
// A matrix `name` [rows, cols] of a format {"bits": b, "group": g} is stored as three tensors:
//   name.q      U8   [rows, ceil(cols * b / 8)]  codes, b bits each, little endian along the row
//   name.scale  BF16 [rows, cols / g]
//   name.min    BF16 [rows, cols / g]
// (of a layer's experts: one expert's rows behind the other's), and means w[r, c] = min[r, c / g] +
// scale[r, c / g] * code[r, c].
//
// With only load() and dequantize() everything works: the runtime dequantizes panels of rows and
// multiplies them itself. For faster decoding see examples/fast-matmul.
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "cbench/submission.h"

namespace {

const cb_host* host = nullptr;

struct Matrix {
  int64_t rows, cols, bits, group, row_bytes;
  const uint8_t* codes;   // [rows, row_bytes]
  const uint16_t* scale;  // [rows, cols / group] BF16
  const uint16_t* min;    // [rows, cols / group] BF16
};

int fail(const std::string& why) {
  host->log(host->ctx, CB_LOG_ERROR, why.c_str());
  return CB_ERROR;
}

float from_bf16(uint16_t bits) {
  const uint32_t wide = uint32_t{bits} << 16;
  float value;
  std::memcpy(&value, &wide, sizeof value);
  return value;
}

uint16_t to_bf16(float value) {  // round to nearest, ties to even
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

/// The whole number behind "key": in a flat JSON object, or -1.
int64_t parameter(const char* json, const char* key) {
  const std::string quoted = std::string("\"") + key + "\"";
  const char* at = std::strstr(json, quoted.c_str());
  at = at != nullptr ? std::strchr(at, ':') : nullptr;
  return at != nullptr ? std::atoll(at + 1) : -1;
}

/// Copies a stored tensor of exactly `bytes` bytes to memory that stays.
const void* resident(const std::string& name, int64_t bytes) {
  cb_tensor tensor;
  if (host->find(host->ctx, name.c_str(), &tensor) != CB_OK ||
      tensor.bytes != static_cast<uint64_t>(bytes)) {
    fail(name + ": missing, or not " + std::to_string(bytes) + " bytes");
    return nullptr;
  }
  void* memory = host->alloc(host->ctx, tensor.bytes, name.c_str());
  if (memory == nullptr) return nullptr;
  return host->read(host->ctx, &tensor, 0, tensor.bytes, memory) == CB_OK ? memory : nullptr;
}

int open_plugin(const cb_host* the_host, void** self) {
  host = the_host;
  *self = nullptr;
  return host->device == CB_DEVICE_CPU ? CB_OK : fail("this plugin runs on the CPU only");
}

void close_plugin(void*) {}

int load(void*, const cb_matrix* source, void** out) {
  auto matrix = std::make_unique<Matrix>();
  matrix->rows = source->rows;
  matrix->cols = source->cols;
  matrix->bits = parameter(source->params, "bits");
  matrix->group = parameter(source->params, "group");
  if (matrix->bits < 1 || matrix->bits > 8 || matrix->group < 1 ||
      source->cols % matrix->group != 0) {
    return fail(std::string(source->name) + ": bits must be 1 to 8, group must divide the columns");
  }
  matrix->row_bytes = (source->cols * matrix->bits + 7) / 8;
  const std::string name = source->name;
  const int64_t rows = source->experts * source->rows;
  const int64_t groups = rows * (source->cols / matrix->group);
  matrix->codes = static_cast<const uint8_t*>(resident(name + ".q", rows * matrix->row_bytes));
  matrix->scale = static_cast<const uint16_t*>(resident(name + ".scale", 2 * groups));
  matrix->min = static_cast<const uint16_t*>(resident(name + ".min", 2 * groups));
  if (matrix->codes == nullptr || matrix->scale == nullptr || matrix->min == nullptr)
    return CB_ERROR;
  *out = matrix.release();
  return CB_OK;
}

void dequantize_row(const Matrix& m, int64_t row, uint16_t* out) {
  const uint8_t* codes = m.codes + row * m.row_bytes;
  const int64_t groups = m.cols / m.group;
  const uint32_t mask = (1u << m.bits) - 1;
  for (int64_t g = 0; g < groups; ++g) {
    const float scale = from_bf16(m.scale[row * groups + g]);
    const float min = from_bf16(m.min[row * groups + g]);
    for (int64_t c = g * m.group; c < (g + 1) * m.group; ++c) {
      const int64_t bit = c * m.bits;
      uint32_t word = codes[bit / 8];
      if (bit % 8 + m.bits > 8) word |= uint32_t{codes[bit / 8 + 1]} << 8;
      const uint32_t code = (word >> (bit % 8)) & mask;
      out[c] = to_bf16(min + scale * static_cast<float>(code));
    }
  }
}

int dequantize(void* m, int64_t expert, int64_t row, int64_t rows, void* bf16_out, cb_stream) {
  const Matrix& matrix = *static_cast<const Matrix*>(m);
  row += expert * matrix.rows;
  auto* out = static_cast<uint16_t*>(bf16_out);
#pragma omp parallel for schedule(static) if (rows > 16)
  for (int64_t r = 0; r < rows; ++r) dequantize_row(matrix, row + r, out + r * matrix.cols);
  return CB_OK;
}

}  // namespace

extern "C" const cb_plugin* cbench_plugin(uint32_t host_abi) {
  if (host_abi != CB_ABI_VERSION) return nullptr;
  static cb_plugin plugin = [] {
    cb_plugin p{};
    p.abi = CB_ABI_VERSION;
    p.size = sizeof(cb_plugin);
    p.open = open_plugin;
    p.close = close_plugin;
    p.load = load;
    p.dequantize = dequantize;
    return p;
  }();
  return &plugin;
}
