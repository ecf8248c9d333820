// Routed experts of the CUDA backend: which kernels serve which call, for stored experts and for
// those of a plugin.
#include <algorithm>
#include <stdexcept>
#include <string>

#include "cuda_ops.h"
#include "experts.h"
#include "rows.h"
#include "runtime/plugin_matrix.h"
#include "util/error.h"

namespace cbench::cuda {
namespace {

constexpr size_t kMostPairs = size_t{768} << 20;  ///< bytes of the pairs' intermediates
constexpr size_t kMostPanel = size_t{128} << 20;  ///< bytes of dequantized experts, but for one

size_t aligned(size_t bytes) { return (bytes + 255) / 256 * 256; }
size_t expert_bytes(const ExpertLinear& w) { return static_cast<size_t>(w.rows * w.cols) * 2; }
size_t panel_bytes(const ExpertLinear& w) {
  if (!w.plugin) return 0;
  const size_t one = expert_bytes(w);
  return std::max(one, std::min(kMostPanel / one * one, static_cast<size_t>(w.experts) * one));
}
size_t planned_workspace(const ExpertLinear& w, int64_t pairs) {
  return w.plugin ? aligned(w.plugin->plan_workspace(pairs)) : 0;
}

/// Scratch of one call of experts() for `rows` rows, in the order in which it is taken; a plugin's
/// own workspace follows.
struct Sizes {
  size_t order, hidden, output, halves, index, transformed, panel;

  Sizes(const ExpertsSpec& s, int64_t rows) {
    const int64_t pairs = rows * s.top_k, inner = s.down.cols;
    const bool plugin = s.gate_up.plugin || s.down.plugin;
    order = expert_order_bytes(pairs, s.gate_up.experts);
    hidden = static_cast<size_t>(pairs * inner) * 2;
    output = static_cast<size_t>(pairs * s.down.rows) * 2;
    halves = s.gate_up.plugin && is_gated(s.activation) ? 2 * hidden : 0;
    index = plugin ? static_cast<size_t>(pairs) * sizeof(int32_t) : 0;
    transformed = plugin ? std::max(static_cast<size_t>(rows * s.gate_up.cols) * 2, hidden) : 0;
    panel = std::max(panel_bytes(s.gate_up), panel_bytes(s.down));
  }
  size_t total() const {
    size_t sum = 0;
    for (const size_t part : {order, hidden, output, halves, index, transformed, panel})
      sum += aligned(part);
    return sum;
  }
};

/// Rows that the intermediates' limit allows to go through experts() at once. A row's result does
/// not depend on it.
int64_t most_rows(const ExpertsSpec& s) {
  const auto per_row =
      static_cast<size_t>(s.top_k * (s.down.cols * (s.gate_up.plugin ? 3 : 1) + s.down.rows)) * 2;
  return std::max<int64_t>(static_cast<int64_t>(kMostPairs / per_row), 1);
}

}  // namespace

size_t experts_scratch_bytes(const ExpertsSpec& s, int64_t tokens) {
  if (s.gate_up.experts > kMostExperts || s.top_k > s.gate_up.experts) {
    throw UsageError("unsupported_model",
                     "the best " + std::to_string(s.top_k) + " of " +
                         std::to_string(s.gate_up.experts) +
                         " experts are not supported on the GPU; up to 1024 experts are");
  }
  const int64_t rows = std::min(tokens, most_rows(s)), pairs = rows * s.top_k;
  return Sizes(s, rows).total() +
         std::max(planned_workspace(s.gate_up, pairs), planned_workspace(s.down, pairs));
}

/// What the two products of a call share.
struct CudaOps::ExpertWork {
  Routing routing;
  int64_t rows = 0, pairs = 0;
  ExpertOrder order;
  bool sorted = false;
  void *index = nullptr, *halves = nullptr, *transformed = nullptr, *panel = nullptr;
  size_t panel_bytes = 0;
};

void CudaOps::route(const RouterSpec& spec, const void* x, int64_t rows, int64_t width,
                    const Routing& routing) {
  scratch_.reset();
  auto* logits =
      static_cast<float*>(scratch_.take(static_cast<size_t>(rows * spec.experts) * sizeof(float)));
  route_rows(spec, x, rows, width, step_, logits, arrived_, routing, stream_);
}

void CudaOps::experts(const ExpertsSpec& spec, const Routing& routing, const void* x, int64_t rows,
                      void* y) {
  const int64_t width = spec.gate_up.cols, rounds = (rows + most_rows(spec) - 1) / most_rows(spec);
  const int64_t most = (rows + rounds - 1) / std::max<int64_t>(rounds, 1);
  for (int64_t row = 0; row < rows; row += most) {
    const int64_t n = std::min(most, rows - row);
    experts_of_rows(spec, {routing.expert + row * spec.top_k, routing.weight + row * spec.top_k},
                    static_cast<const uint16_t*>(x) + row * width, n,
                    static_cast<uint16_t*>(y) + row * spec.down.rows);
  }
}

void CudaOps::experts_of_rows(const ExpertsSpec& spec, const Routing& routing, const void* x,
                              int64_t rows, void* y) {
  scratch_.reset();
  const Sizes sizes(spec, rows);
  ExpertWork work{.routing = routing, .rows = rows, .pairs = rows * spec.top_k};
  work.order = expert_order(work.pairs, spec.gate_up.experts, scratch_.take(sizes.order));
  void* hidden = scratch_.take(sizes.hidden);

  ExpertProduct first;
  first.x = x, first.share = spec.top_k, first.w = spec.gate_up.bf16, first.y = hidden;
  first.n = spec.down.cols, first.k = spec.gate_up.cols;
  first.output = output_of(spec.activation);
  ExpertProduct second;
  second.x = hidden, second.w = spec.down.bf16, second.n = spec.down.rows,
  second.k = spec.down.cols;
  if (single_step(rows) && spec.gate_up.bf16 && spec.down.bf16) {
    second.y = y;
    expert_pairs(first, routing.expert, nullptr, 0, work.pairs, stream_);
    return expert_sum(second, routing, rows, spec.top_k, stream_);
  }
  second.y = scratch_.take(sizes.output);
  work.halves = scratch_.take(sizes.halves);
  work.index = scratch_.take(sizes.index);
  work.transformed = scratch_.take(sizes.transformed);
  work.panel = scratch_.take(sizes.panel);
  work.panel_bytes = sizes.panel;
  multiply_experts(work, spec.gate_up, first, spec.activation);
  multiply_experts(work, spec.down, second, {});
  combine_pairs(second.y, routing.weight, rows, spec.top_k, spec.down.rows, y, stream_);
}

void CudaOps::sort_once(ExpertWork& work) {
  if (!work.sorted) sort_pairs(work.routing.expert, work.order, stream_);
  work.sorted = true;
}

/// One of the two products, by whatever serves the matrix.
void CudaOps::multiply_experts(ExpertWork& work, const ExpertLinear& w,
                               const ExpertProduct& product, Activation activation) {
  if (w.plugin) {
    if (!plugin_experts(work, w, product, activation)) dequantized_experts(work, w, product);
  } else if (!w.bf16) {
    throw std::logic_error("experts without BF16 rows or a plugin on the GPU");
  } else if (single_step(work.rows) || !expert_tiles_take(product)) {
    expert_pairs(product, work.routing.expert, nullptr, 0, work.pairs, stream_);
  } else {
    sort_once(work);
    expert_grouped(product, work.order, 0, expert_tiles(work.pairs, w.experts), stream_);
  }
}

/// Lets the plugin multiply; the activation follows.
bool CudaOps::plugin_experts(ExpertWork& work, const ExpertLinear& w, const ExpertProduct& product,
                             Activation activation) {
  if (!w.plugin->has_experts()) return false;
  auto* index = static_cast<int32_t*>(work.index);
  fill_quotients(index, work.pairs, product.share, stream_);
  const bool halves =
      product.output == ExpertOutput::kSilu || product.output == ExpertOutput::kGelu;
  void* y = halves ? work.halves : product.y;
  const size_t mark = scratch_.used(), bytes = w.plugin->workspace(work.pairs);
  void* workspace = bytes ? scratch_.take(bytes) : nullptr;
  const bool served =
      w.plugin->experts(product.x, work.routing.expert, index, work.pairs, y, workspace, stream_);
  scratch_.rewind(mark);
  if (!served) return false;
  if (product.output != ExpertOutput::kPlain)
    activate_rows(activation, y, work.pairs, product.n, product.y, stream_);
  return true;
}

/// Dequantizes the experts that have pairs, as many at a time as the panel holds, and multiplies as
/// with stored ones. The host reads which they are, so that this cannot be recorded.
void CudaOps::dequantized_experts(ExpertWork& work, const ExpertLinear& w, ExpertProduct product) {
  if (capturing_) throw NotRecordable();
  sort_once(work);
  std::vector<int32_t> first(static_cast<size_t>(w.experts) + 1), tiles(first.size());
  copy_out(first.data(), work.order.first, first.size() * sizeof(int32_t));
  copy_out(tiles.data(), work.order.tile_first, tiles.size() * sizeof(int32_t));
  if (w.plugin->has_transform()) {
    w.plugin->transform(product.x, work.pairs / product.share, work.transformed, stream_);
    product.x = work.transformed;
  }
  product.w = work.panel;
  const size_t one = expert_bytes(w);
  const auto most = static_cast<int64_t>(work.panel_bytes / one);
  for (int64_t from = 0; from < w.experts; from += most) {
    const int64_t to = std::min(w.experts, from + most);
    const auto a = static_cast<size_t>(from), b = static_cast<size_t>(to);
    if (first[a] == first[b]) continue;
    for (size_t e = a; e < b; e++)
      if (first[e] < first[e + 1])
        w.plugin->dequantize_expert(static_cast<int64_t>(e), 0, w.rows,
                                    static_cast<unsigned char*>(work.panel) + (e - a) * one,
                                    stream_);
    product.first_expert = from;
    if (!single_step(work.rows) && expert_tiles_take(product)) {
      expert_grouped(product, work.order, tiles[a], tiles[b] - tiles[a], stream_);
    } else {
      expert_pairs(product, work.routing.expert, work.order.pair, first[a], first[b] - first[a],
                   stream_);
    }
  }
}

}  // namespace cbench::cuda
