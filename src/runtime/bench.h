// Measures a model on a backend beside the machine's own ceilings, taken in the same run: GEMM rate
// at the model's shapes, read and copy bandwidth. docs/runtime.md describes the report.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "runtime/model.h"

namespace cbench {

/// What the machine can do, measured with as little as possible around it.
class Ceilings {
 public:
  virtual ~Ceilings() = default;
  /// Seconds of one plain product y [m, n] = x [m, k] W^T in the activation type, by the library.
  virtual double gemm_seconds(int64_t m, int64_t n, int64_t k) = 0;
  /// Bytes per second of reading `bytes` once.
  virtual double read_bandwidth(int64_t bytes) = 0;
  /// Bytes per second, read plus written, of copying `bytes`.
  virtual double copy_bandwidth(int64_t bytes) = 0;
};
std::unique_ptr<Ceilings> make_cpu_ceilings();
/// Of the device that `ops` runs on; defined by the CUDA backend.
std::unique_ptr<Ceilings> make_cuda_ceilings(Ops& ops);

/// Repetitions of one figure.
struct Samples {
  std::vector<double> values;
  double median() const;
  double low() const;   ///< smallest
  double high() const;  ///< largest
};

struct BenchOptions {
  int64_t tokens = 2048;   ///< rows of a prefill
  int64_t sequence = 512;  ///< tokens of each sequence packed into it
  int64_t decode = 128;    ///< tokens generated in a measurement
  int64_t context = 128;   ///< tokens before them
  int64_t repetitions = 7;
};

struct OpTime {
  int64_t calls = 0;
  double seconds = 0;
};

struct BenchReport {
  std::string device;
  std::string model;
  int64_t parameters = 0;  ///< matrix weights, the embedding table included
  int64_t blocks = 0;      ///< that were run,
  int64_t of_blocks = 0;   ///< of as many in the model
  int64_t streamed = 0;    ///< bytes of weights that stream from host memory
  BenchOptions options;

  // Ceilings, interleaved with the repetitions below.
  Samples gemm_rate;  ///< FLOP/s over the forward's products, each at its own shape
  Samples read_rate;  ///< bytes/s over as many bytes as a decode step reads
  Samples copy_rate;  ///< bytes/s, read plus written, over 256 MiB

  Samples prefill;           ///< tokens/s of forward()
  Samples scoring;           ///< tokens/s of forward() and the logits of every row
  double forward_flops = 0;  ///< of the matrix products of one forward, without the head
  double head_flops = 0;     ///< of the head over every row
  Samples gemm_share;        ///< prefill's FLOP/s over the GEMM ceiling of the same repetition
  Samples decode;            ///< tokens/s of generate()
  std::array<double, kCategories> step_bytes{};  ///< read per generated token, by category
  Samples read_share;  ///< decode's bytes/s over the read ceiling of the same repetition
  std::map<std::string, OpTime> prefill_ops;  ///< one profiled forward and its head
  std::map<std::string, OpTime> decode_ops;   ///< one profiled step
  uint64_t token_hash = 0;  ///< of the generated ids: the same package gives the same hash

  double bytes_per_token() const;
};

/// Floating-point operations of the matrix products of a forward of `rows` rows, without the head.
double forward_flops(const ModelConfig& config, int64_t rows);
/// FLOP/s of those products one by one, each at its own shape.
double gemm_ceiling(const ModelConfig& config, int64_t rows, Ceilings& ceilings);

/// What the measurement needs of a model: capacity for `options`.
Capacity bench_capacity(const BenchOptions& options);

/// Runs all measurements. `weights` binds the model anew on `ops`, which must be fresh.
BenchReport bench_model(Ops& ops, const ModelConfig& config, WeightSource& weights,
                        Ceilings& ceilings, const BenchOptions& options);

/// The report as JSON (schema cbench.bench.v1) and as a table for people.
std::string bench_json(const BenchReport& report);
std::string bench_table(const BenchReport& report);

}  // namespace cbench
