// Group-quantized matrices with their own matmul: the format of examples/starter, multiplied
// straight from the codes for small token counts, so that decoding reads a quarter of the bytes.
//
// A matrix `name` [rows, cols] of a format {"bits": b, "group": g} is stored as three tensors:
//   name.q      U8   [rows, ceil(cols * b / 8)]  codes, b bits each, little endian along the row
//   name.scale  BF16 [rows, cols / g]
//   name.min    BF16 [rows, cols / g]
// and means w[r, c] = min[r, c / g] + scale[r, c / g] * code[r, c].
//
// Per group, sum_c w x = min * sum_c x + scale * sum_c code x: the sums of x are taken once per
// token, and the codes are unpacked to floats without the two BF16 roundings that dequantize()
// needs.
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

constexpr int64_t kMaxGroup = 1024;
constexpr int64_t kMaxTokens = 8;  // above this, dequantizing once for all tokens is cheaper

/// Eight codes fill exactly `bits` bytes, so they are taken from one word at fixed shifts, which
/// the compiler turns into vector code.
template <int bits>
void unpack(const uint8_t* codes, int64_t n, float* out) {
  for (int64_t i = 0; i < n; i += 8) {
    uint64_t word = 0;
    for (int k = 0; k < bits; ++k) word |= uint64_t{codes[i * bits / 8 + k]} << (8 * k);
    for (int k = 0; k < 8; ++k) {
      out[i + k] =
          static_cast<float>(static_cast<int32_t>((word >> (k * bits)) & ((1u << bits) - 1)));
    }
  }
}

/// Codes of one group as floats; groups are multiples of eight (matmul checks).
void unpack_group(const Matrix& m, const uint8_t* codes, int64_t first, float* out) {
  const uint8_t* begin = codes + first * m.bits / 8;
  switch (m.bits) {
    case 1:
      return unpack<1>(begin, m.group, out);
    case 2:
      return unpack<2>(begin, m.group, out);
    case 3:
      return unpack<3>(begin, m.group, out);
    case 4:
      return unpack<4>(begin, m.group, out);
    case 5:
      return unpack<5>(begin, m.group, out);
    case 6:
      return unpack<6>(begin, m.group, out);
    case 7:
      return unpack<7>(begin, m.group, out);
    default:
      return unpack<8>(begin, m.group, out);
  }
}

float dot(const float* a, const float* b, int64_t n) {
  float sum = 0;
#pragma omp simd reduction(+ : sum) simdlen(16)
  for (int64_t i = 0; i < n; ++i) sum += a[i] * b[i];
  return sum;
}

/// Bytes of scratch: sums of x per token and group.
size_t workspace(void* m, int64_t tokens) {
  const Matrix& matrix = *static_cast<const Matrix*>(m);
  return static_cast<size_t>(tokens * (matrix.cols / matrix.group)) * sizeof(float);
}

int matmul(void* m, const void* x, int64_t tokens, void* y, int64_t y_stride, void* scratch,
           cb_stream) {
  const Matrix& matrix = *static_cast<const Matrix*>(m);
  if (tokens > kMaxTokens || matrix.group > kMaxGroup || matrix.group % 8 != 0) {
    return CB_UNSUPPORTED;
  }
  const auto* in = static_cast<const float*>(x);
  auto* out = static_cast<float*>(y);
  auto* sums = static_cast<float*>(scratch);  // [tokens, groups]
  const int64_t groups = matrix.cols / matrix.group;
  for (int64_t t = 0; t < tokens; ++t) {
    for (int64_t g = 0; g < groups; ++g) {
      float sum = 0;
      for (int64_t i = 0; i < matrix.group; ++i) sum += in[t * matrix.cols + g * matrix.group + i];
      sums[t * groups + g] = sum;
    }
  }
#pragma omp parallel for schedule(static)
  for (int64_t r = 0; r < matrix.rows; ++r) {
    float code[kMaxGroup];
    float total[kMaxTokens] = {};
    for (int64_t g = 0; g < groups; ++g) {
      unpack_group(matrix, matrix.codes + r * matrix.row_bytes, g * matrix.group, code);
      const float scale = from_bf16(matrix.scale[r * groups + g]);
      const float min = from_bf16(matrix.min[r * groups + g]);
      for (int64_t t = 0; t < tokens; ++t) {
        const float* xs = in + t * matrix.cols + g * matrix.group;
        total[t] += min * sums[t * groups + g] + scale * dot(code, xs, matrix.group);
      }
    }
    for (int64_t t = 0; t < tokens; ++t) out[t * y_stride + r] = total[t];
  }
  return CB_OK;
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
    p.workspace = workspace;
    p.matmul = matmul;
    return p;
  }();
  return &plugin;
}
