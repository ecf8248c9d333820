// Two backends side by side: the same BF16-representable inputs go to the CPU op, which is the
// oracle, and to the CUDA op. Tests skip, loudly, on a machine without a usable GPU.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "runtime/checkpoint_source.h"
#include "runtime/ops.h"
#include "util/error.h"
#include "util/random.h"

namespace cbench::testing {

/// Why there is no GPU to test on; empty if there is one.
inline const std::string& gpu_missing() {
  static const std::string reason = [] {
    try {
      make_cuda_ops(0);
      return std::string();
    } catch (const Error& error) {
      return std::string(error.what());
    }
  }();
  return reason;
}
#define SKIP_WITHOUT_GPU()                       \
  if (!::cbench::testing::gpu_missing().empty()) \
  GTEST_SKIP() << "NO GPU, NOT TESTED: " << ::cbench::testing::gpu_missing()

inline float from_bf16(uint16_t bits) {
  const uint32_t wide = uint32_t{bits} << 16;
  float value;
  std::memcpy(&value, &wide, sizeof value);
  return value;
}

/// n numbers that BF16 holds exactly, uniform in [-amplitude, amplitude).
inline std::vector<float> random_values(Random& random, int64_t n, double amplitude) {
  std::vector<float> out(static_cast<size_t>(n));
  for (float& v : out)
    v = from_bf16(to_bf16(static_cast<float>((2 * random.uniform() - 1) * amplitude)));
  return out;
}

/// An Ops with what tests need around it. Allocations live as long as it.
class Side {
 public:
  explicit Side(std::unique_ptr<Ops> ops) : ops_(std::move(ops)) {}
  Ops* operator->() { return ops_.get(); }
  Ops& ops() { return *ops_; }

  /// Activations: BF16 on CUDA, fp32 on the CPU.
  void* act(std::span<const float> values) {
    if (!ops_->is_cuda()) return floats(values);
    return bf16(values);
  }
  void* act(int64_t n) { return act(std::vector<float>(static_cast<size_t>(n), 7.f)); }
  void* bf16(std::span<const float> values) {
    std::vector<uint16_t> bits(values.size());
    for (size_t i = 0; i < bits.size(); i++) bits[i] = to_bf16(values[i]);
    return put(bits.data(), bits.size() * 2);
  }
  float* floats(std::span<const float> values) {
    return static_cast<float*>(put(values.data(), values.size_bytes()));
  }
  std::vector<float> read(const void* data, int64_t n) {
    if (!ops_->is_cuda()) return read_floats(data, n);
    std::vector<uint16_t> bits(static_cast<size_t>(n));
    ops_->copy_out(bits.data(), data, bits.size() * 2);
    std::vector<float> out(bits.size());
    for (size_t i = 0; i < bits.size(); i++) out[i] = from_bf16(bits[i]);
    return out;
  }
  std::vector<float> read_floats(const void* data, int64_t n) {
    std::vector<float> out(static_cast<size_t>(n));
    ops_->copy_out(out.data(), data, out.size() * 4);
    return out;
  }
  void* put(const void* data, size_t bytes) {
    void* to = ops_->arena().allocate(bytes + 16, Category::kActivations, "test");
    ops_->copy_in(to, data, bytes);
    return to;
  }

 private:
  std::unique_ptr<Ops> ops_;
};

/// ||a - b|| / ||b||; infinity when a value is not finite.
inline double distance(std::span<const float> a, std::span<const float> b) {
  if (a.size() != b.size()) return INFINITY;
  double difference = 0, norm = 0;
  for (size_t i = 0; i < a.size(); i++) {
    if (!std::isfinite(a[i])) return INFINITY;
    difference += (double{a[i]} - b[i]) * (double{a[i]} - b[i]);
    norm += double{b[i]} * b[i];
  }
  return norm == 0 ? std::sqrt(difference) : std::sqrt(difference / norm);
}
/// The largest |a - b| as a share of the root mean square of b.
inline double worst(std::span<const float> a, std::span<const float> b) {
  double difference = 0, norm = 0;
  for (size_t i = 0; i < a.size(); i++) {
    if (!std::isfinite(a[i])) return INFINITY;
    difference = std::max(difference, std::abs(double{a[i]} - b[i]));
    norm += double{b[i]} * b[i];
  }
  return difference / std::sqrt(norm / static_cast<double>(b.size()) + 1e-30);
}

/// BF16 has 8 bits: a value rounded once is within 2^-9 of the exact one.
constexpr double kOneRounding = 4e-3;
/// Several roundings in a row: normalized inputs, products, probabilities.
constexpr double kSomeRoundings = 1e-2;

/// Rows of sequences as a batch.
struct TestBatch {
  std::vector<int32_t> ids;
  std::vector<Span> spans;
  void add(int32_t slot, int32_t start, int32_t count) {
    spans.push_back({slot, start, static_cast<int32_t>(ids.size()), count});
    for (int32_t i = 0; i < count; i++) ids.push_back((slot * 7 + start + i) % 5);
  }
  int64_t rows() const { return static_cast<int64_t>(ids.size()); }
  Batch view() const { return {ids, spans}; }
};

}  // namespace cbench::testing
