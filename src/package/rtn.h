// Round-to-nearest quantisation of a BF16 matrix in groups along the input dimension: the plain
// method that every better one is compared with. Format, which the starter plugin reads:
//
//   w[r][c] ~ min[r][c / group] + scale[r][c / group] * code[r][c]
//
// with BF16 scale and min, and codes of `bits` bits packed contiguously along each row, the lowest
// bit of code 0 first; a row ends at a whole byte.
#pragma once

#include <cstdint>
#include <span>
#include <string>

namespace cbench {

struct RtnChoice {
  int bits = 4;          ///< 2 to 8
  int64_t group = 64;    ///< divides the number of columns
  bool fit_mse = false;  ///< shrink each group's range to the least squared error
};

struct RtnMatrix {
  std::string codes;  ///< [rows, rtn_row_bytes(cols, bits)]
  std::string scale;  ///< BF16 [rows, cols / group]
  std::string min;    ///< BF16 [rows, cols / group]
};

/// Bytes of one row of codes.
int64_t rtn_row_bytes(int64_t cols, int bits);

/// Bytes of codes, scale and min together.
int64_t rtn_bytes(int64_t rows, int64_t cols, const RtnChoice& choice);

/// `weights` are BF16 bit patterns, row major. Works on all cores. Throws UsageError ("rtn") for a
/// choice that the format cannot hold, a group that does not divide the columns, or weights that
/// are not finite.
RtnMatrix quantise_rtn(std::span<const uint16_t> weights, int64_t rows, int64_t cols,
                       const RtnChoice& choice);

/// The inverse, into floats, as a plugin computes it. For tests and error figures.
void dequantise_rtn(const RtnMatrix& matrix, int64_t rows, int64_t cols, const RtnChoice& choice,
                    std::span<float> out);

/// BF16 bits to float, and back to the nearest (ties to even).
float bf16_to_float(uint16_t bits);
uint16_t float_to_bf16(float value);

}  // namespace cbench
