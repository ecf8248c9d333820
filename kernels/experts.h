// Routed experts: the router, the products of (row, slot) pairs, their order by expert, and the
// weighted sum. Together they equal the CPU's route and experts.
//
// A pair is one of a row's experts: pair = row * top_k + slot, and there are rows * top_k of them.
#pragma once

#include <cstdint>

#include <cuda_runtime_api.h>

#include "runtime/ops.h"

namespace cbench::cuda {

/// Largest sizes that the kernels hold in shared memory and registers.
constexpr int64_t kMostExperts = 1024, kMostRouterGroups = 32;

/// Routes `rows` rows; `logits` is scratch [rows, experts] fp32, and `arrived` a counter in device
/// memory that is 0 before and after. In a step every block reads its expert's weights for up to 8
/// rows; otherwise rows and experts are tiled. Either way a row's numbers depend on nothing else.
void route_rows(const RouterSpec& spec, const void* x, int64_t rows, int64_t width, bool step,
                float* logits, unsigned* arrived, const Routing& routing, cudaStream_t stream);

/// Pairs by expert, in device memory; ascending within an expert.
constexpr int kExpertTile = 128;  ///< pairs of one expert that a block multiplies together
struct ExpertOrder {
  int32_t* pair = nullptr;         ///< [pairs]
  int32_t* first = nullptr;        ///< [experts + 1]: where an expert's pairs begin
  int32_t* tile_first = nullptr;   ///< [experts + 1]: where its tiles begin
  int32_t* tile_expert = nullptr;  ///< [expert_tiles(pairs, experts)]
  int32_t* counts = nullptr;       ///< scratch
  int64_t pairs = 0, experts = 0;
};
/// The most tiles that `pairs` can take, however they are routed.
int64_t expert_tiles(int64_t pairs, int64_t experts);
size_t expert_order_bytes(int64_t pairs, int64_t experts);
/// Lays the arrays out in expert_order_bytes() at `base`.
ExpertOrder expert_order(int64_t pairs, int64_t experts, void* base);
/// Stable counting sort of expert [pairs] (Routing::expert).
void sort_pairs(const int32_t* expert, const ExpertOrder& order, cudaStream_t stream);

enum class ExpertOutput { kPlain, kSilu, kGelu, kRelu2 };
template <ExpertOutput kOutput>
constexpr bool kIsGated = kOutput == ExpertOutput::kSilu || kOutput == ExpertOutput::kGelu;
constexpr ExpertOutput output_of(Activation activation) {
  return activation == Activation::kSilu       ? ExpertOutput::kSilu
         : activation == Activation::kGeluTanh ? ExpertOutput::kGelu
                                               : ExpertOutput::kRelu2;
}

/// y[pair] = output(W[expert of pair] x[pair / share]).
struct ExpertProduct {
  const void* x = nullptr;  ///< [pairs / share, k] BF16
  int64_t share = 1;        ///< pairs that share a row of x
  /// [experts from first_expert on, n or (gated) 2 n, k] BF16
  const void* w = nullptr;
  int64_t first_expert = 0;
  void* y = nullptr;  ///< [pairs, n] BF16
  int64_t n = 0, k = 0;
  ExpertOutput output = ExpertOutput::kPlain;
};

/// Pairs one by one, at the speed of memory. Either the pairs [first, first + count) themselves
/// (order null), or those that the order holds there.
void expert_pairs(const ExpertProduct& product, const int32_t* expert, const int32_t* order,
                  int64_t first, int64_t count, cudaStream_t stream);
/// The second half of a step in one kernel: y [rows, n] BF16 = sum over slots of weight * W
/// x[pair].
void expert_sum(const ExpertProduct& product, const Routing& routing, int64_t rows, int64_t top_k,
                cudaStream_t stream);

/// Whether tensor cores take the shape; others go through expert_pairs.
bool expert_tiles_take(const ExpertProduct& product);
/// Tiles [first, first + count) of the order; those beyond its last do nothing.
void expert_grouped(const ExpertProduct& product, const ExpertOrder& order, int64_t first,
                    int64_t count, cudaStream_t stream);

/// y [rows, width] BF16 = sum over slots, in order, of weight [rows, top_k] * pairs [rows, top_k,
/// width] BF16.
void combine_pairs(const void* pairs, const float* weight, int64_t rows, int64_t top_k,
                   int64_t width, void* y, cudaStream_t stream);
/// index [n] = i / divisor.
void fill_quotients(int32_t* index, int64_t n, int64_t divisor, cudaStream_t stream);

}  // namespace cbench::cuda
