// Measures the evaluator itself on a model of random weights: everything that a verification runs,
// in its real processes, at the protocol's sizes, beside the same work without the process border.
#pragma once

#include <string>
#include <vector>

#include "box/box.h"
#include "engine/client.h"
#include "eval/audit.h"
#include "eval/decode_speed.h"
#include "eval/energy.h"

namespace cbench {

struct EvaluatorBenchOptions {
  std::string config;   ///< text of a config.json
  std::string package;  ///< a checkpoint to load instead of random weights; "" = none
  std::string device = "cpu";
  BoxKind box = BoxKind::kBwrap;
  int64_t blocks = 256;
  int64_t context = 512;
  int64_t continuation = 1536;
  int64_t items = 150;  ///< answers, in three kinds like the suite's benchmarks
  int64_t answer_tokens = 384;
  int64_t direct_blocks = 64;  ///< blocks scored without the border
};

struct EvaluatorBenchReport {
  std::string device, box, logits;
  EvaluatorBenchOptions options;
  double load_seconds = 0;         ///< start of the engine to ready, synthetic weights
  double first_token_seconds = 0;  ///< the first forward after that
  double scoring_seconds = 0;
  double scoring_rate = 0;   ///< rows per second through the evaluator
  double direct_rate = 0;    ///< the same work in one process
  double gemm_rate = 0;      ///< FLOP/s of the model's products, right after scoring
  double scoring_flops = 0;  ///< FLOP/s of scoring: products, head, causal attention
  double generation_seconds = 0;
  int64_t generated = 0;
  double audit_seconds = 0;
  double decode_seconds = 0;  ///< of the whole stage
  double total_seconds = 0;   ///< start of the engine to its end: a verification's time
  DecodeSpeed decode;
  AuditResult audit;
  double idle_watts = 0;
  EnergyUse scoring_energy;
  EngineMemory after_load, after_use;

  double border() const { return direct_rate > 0 ? 1 - scoring_rate / direct_rate : 0; }
};

EvaluatorBenchReport bench_evaluator(const EvaluatorBenchOptions& options);

/// Schema cbench.bench_evaluator.v1 (docs/cuda.md), and a table for people.
std::string evaluator_bench_json(const EvaluatorBenchReport& report);
std::string evaluator_bench_table(const EvaluatorBenchReport& report);

}  // namespace cbench
