#include "package/rtn.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstring>
#include <thread>
#include <vector>

#include "util/error.h"

namespace cbench {
namespace {

constexpr int kFitSteps = 20;       // ranges tried by fit_mse ...
constexpr float kFitStep = 0.025F;  // ... from the full range down to half of it
constexpr int64_t kRowsPerTask = 64;

struct GroupFit {
  uint16_t scale = 0, min = 0;
};

int code_of(float weight, float min, float inverse, int levels) {
  return std::clamp(static_cast<int>(std::lrintf((weight - min) * inverse)), 0, levels);
}

/// Scale and min of a range, as they will be stored.
GroupFit stored_fit(float low, float high, int levels) {
  GroupFit fit;
  fit.min = float_to_bf16(low);
  const float range = std::max(0.0F, high - bf16_to_float(fit.min));
  fit.scale = float_to_bf16(range / static_cast<float>(levels));
  return fit;
}

double squared_error(std::span<const float> weights, GroupFit fit, int levels) {
  const float min = bf16_to_float(fit.min), scale = bf16_to_float(fit.scale);
  const float inverse = scale > 0 ? 1 / scale : 0;
  double sum = 0;
  for (const float weight : weights) {
    const int code = code_of(weight, min, inverse, levels);
    const float difference = weight - (min + scale * static_cast<float>(code));
    sum += static_cast<double>(difference * difference);
  }
  return sum;
}

GroupFit fit_group(std::span<const float> weights, const RtnChoice& choice) {
  const int levels = (1 << choice.bits) - 1;
  const auto [low, high] = std::minmax_element(weights.begin(), weights.end());
  GroupFit best = stored_fit(*low, *high, levels);
  if (!choice.fit_mse) return best;
  double least = squared_error(weights, best, levels);
  const float middle = 0.5F * (*low + *high), half = 0.5F * (*high - *low);
  for (int step = 1; step <= kFitSteps; ++step) {
    const float kept = half * (1 - kFitStep * static_cast<float>(step));
    const GroupFit fit = stored_fit(middle - kept, middle + kept, levels);
    const double error = squared_error(weights, fit, levels);
    if (error < least) {
      least = error;
      best = fit;
    }
  }
  return best;
}

/// Puts `bits` bits of `code` at bit position `at` of a zeroed row.
void put_code(unsigned char* row, int64_t at, int bits, int code) {
  const unsigned shifted = static_cast<unsigned>(code) << (at % 8);
  row[at / 8] = static_cast<unsigned char>(row[at / 8] | (shifted & 255));
  if (at % 8 + bits > 8) row[at / 8 + 1] = static_cast<unsigned char>(shifted >> 8);
}

class Quantiser {
 public:
  Quantiser(std::span<const uint16_t> weights, int64_t cols, const RtnChoice& choice,
            RtnMatrix& out)
      : weights_(weights), cols_(cols), choice_(choice), out_(out) {}

  /// False when a weight is not finite.
  bool row(int64_t r, std::vector<float>& buffer) const {
    const int levels = (1 << choice_.bits) - 1;
    const int64_t groups = cols_ / choice_.group;
    auto* codes = reinterpret_cast<unsigned char*>(out_.codes.data()) +
                  r * rtn_row_bytes(cols_, choice_.bits);
    buffer.resize(static_cast<size_t>(choice_.group));
    for (int64_t g = 0; g < groups; ++g) {
      const int64_t first = r * cols_ + g * choice_.group;
      for (int64_t i = 0; i < choice_.group; ++i) {
        buffer[static_cast<size_t>(i)] = bf16_to_float(weights_[static_cast<size_t>(first + i)]);
        if (!std::isfinite(buffer[static_cast<size_t>(i)])) return false;
      }
      const GroupFit fit = fit_group(buffer, choice_);
      const size_t at = static_cast<size_t>(2 * (r * groups + g));
      std::memcpy(out_.scale.data() + at, &fit.scale, 2);
      std::memcpy(out_.min.data() + at, &fit.min, 2);
      const float min = bf16_to_float(fit.min), scale = bf16_to_float(fit.scale);
      const float inverse = scale > 0 ? 1 / scale : 0;
      for (int64_t i = 0; i < choice_.group; ++i) {
        put_code(codes, (g * choice_.group + i) * choice_.bits, choice_.bits,
                 code_of(buffer[static_cast<size_t>(i)], min, inverse, levels));
      }
    }
    return true;
  }

 private:
  std::span<const uint16_t> weights_;
  int64_t cols_;
  const RtnChoice& choice_;
  RtnMatrix& out_;
};

void check_choice(int64_t rows, int64_t cols, const RtnChoice& choice, size_t weights) {
  if (choice.bits < 2 || choice.bits > 8) {
    throw UsageError("rtn", "bits must be 2 to 8, not " + std::to_string(choice.bits));
  }
  if (choice.group <= 0 || cols % choice.group != 0) {
    throw UsageError("rtn", "groups of " + std::to_string(choice.group) + " do not divide " +
                                std::to_string(cols) + " columns");
  }
  if (static_cast<size_t>(rows * cols) != weights) {
    throw UsageError("rtn", "the weights are not rows times columns");
  }
}

}  // namespace

float bf16_to_float(uint16_t bits) { return std::bit_cast<float>(uint32_t{bits} << 16); }

uint16_t float_to_bf16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffffU) > 0x7f800000U) return static_cast<uint16_t>((bits >> 16) | 64U);
  return static_cast<uint16_t>((bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16);
}

int64_t rtn_row_bytes(int64_t cols, int bits) { return (cols * bits + 7) / 8; }

int64_t rtn_bytes(int64_t rows, int64_t cols, const RtnChoice& choice) {
  return rows * (rtn_row_bytes(cols, choice.bits) + 4 * (cols / choice.group));
}

RtnMatrix quantise_rtn(std::span<const uint16_t> weights, int64_t rows, int64_t cols,
                       const RtnChoice& choice) {
  check_choice(rows, cols, choice, weights.size());
  RtnMatrix out;
  out.codes.assign(static_cast<size_t>(rows * rtn_row_bytes(cols, choice.bits)), '\0');
  out.scale.assign(static_cast<size_t>(2 * rows * (cols / choice.group)), '\0');
  out.min = out.scale;
  const Quantiser quantiser(weights, cols, choice, out);
  std::atomic<int64_t> next = 0;
  std::atomic<bool> finite = true;
  const auto work = [&] {
    std::vector<float> buffer;
    for (int64_t first = next.fetch_add(kRowsPerTask); first < rows && finite;
         first = next.fetch_add(kRowsPerTask)) {
      for (int64_t r = first; r < std::min(rows, first + kRowsPerTask); ++r) {
        if (!quantiser.row(r, buffer)) finite = false;
      }
    }
  };
  {
    std::vector<std::jthread> helpers;
    const unsigned cores = std::max(1U, std::thread::hardware_concurrency());
    for (unsigned i = 1; i < cores; ++i) helpers.emplace_back(work);
    work();
  }
  if (!finite) throw UsageError("rtn", "a weight is not a finite number");
  return out;
}

void dequantise_rtn(const RtnMatrix& matrix, int64_t rows, int64_t cols, const RtnChoice& choice,
                    std::span<float> out) {
  const int64_t groups = cols / choice.group, row_bytes = rtn_row_bytes(cols, choice.bits);
  const auto value = [](const std::string& text, int64_t index) {
    uint16_t bits = 0;
    std::memcpy(&bits, text.data() + 2 * index, 2);
    return bf16_to_float(bits);
  };
  for (int64_t i = 0; i < rows * cols; ++i) {
    const int64_t r = i / cols, c = i % cols, at = c * choice.bits;
    const auto* row = reinterpret_cast<const unsigned char*>(matrix.codes.data()) + r * row_bytes;
    unsigned code = row[at / 8];
    if (at % 8 + choice.bits > 8) code |= unsigned{row[at / 8 + 1]} << 8;
    code = (code >> (at % 8)) & ((1U << choice.bits) - 1);
    const int64_t g = r * groups + c / choice.group;
    out[static_cast<size_t>(i)] =
        value(matrix.min, g) + value(matrix.scale, g) * static_cast<float>(code);
  }
}

}  // namespace cbench
