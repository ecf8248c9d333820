// Routed experts on one side, as the tests of stored and of plugin experts use them.
#pragma once

#include <algorithm>
#include <vector>

#include "kernels/support.h"

namespace cbench::testing {

struct ExpertShape {
  int64_t experts, top_k, width, inner;
  Activation activation;
};

inline constexpr Capacity kExpertCapacity{
    .tokens = 400, .sequences = 16, .slots = 16, .max_length = 8, .logits_rows = 1};

/// A routing on the host: distinct experts per row, weights that sum to about one.
struct HostRouting {
  std::vector<int32_t> expert;
  std::vector<float> weight;

  HostRouting(Random& random, int64_t rows, const ExpertShape& s, int64_t favourites = 0) {
    std::vector<int32_t> all(static_cast<size_t>(favourites ? favourites : s.experts));
    for (int64_t row = 0; row < rows; row++) {
      for (size_t e = 0; e < all.size(); e++) all[e] = static_cast<int32_t>(e);
      for (int64_t j = 0; j < s.top_k; j++) {
        const auto left = static_cast<double>(all.size() - static_cast<size_t>(j));
        const auto pick = static_cast<size_t>(j) + static_cast<size_t>(random.uniform() * left);
        std::swap(all[static_cast<size_t>(j)], all[std::min(pick, all.size() - 1)]);
        expert.push_back(all[static_cast<size_t>(j)]);
        weight.push_back(static_cast<float>(2 * random.uniform() / static_cast<double>(s.top_k)));
      }
    }
  }
};

struct ExpertRig {
  Side side;
  ExpertShape shape;
  ExpertsSpec spec;
  std::vector<float> gate_up, down;

  ExpertRig(std::unique_ptr<Ops> ops, const ExpertShape& s) : side(std::move(ops)), shape(s) {
    Random random(31);
    const int64_t first = is_gated(s.activation) ? 2 * s.inner : s.inner;
    gate_up = random_values(random, s.experts * first * s.width,
                            2 / std::sqrt(static_cast<double>(s.width)));
    down = random_values(random, s.experts * s.width * s.inner,
                         2 / std::sqrt(static_cast<double>(s.inner)));
    spec.top_k = s.top_k, spec.activation = s.activation;
    spec.gate_up = {s.experts, first, s.width, side.bf16(gate_up)};
    spec.down = {s.experts, s.width, s.inner, side.bf16(down)};
  }
  void reserve(const Capacity& capacity = kExpertCapacity) {
    side->reserve(capacity, {.experts = {spec}});
  }
  void upload(int64_t rows, bool steps) {
    TestBatch batch;
    for (int32_t i = 0; steps && i < rows; i++) batch.add(i, 3, 1);
    if (!steps) batch.add(0, 0, static_cast<int32_t>(rows));
    side->upload(batch.view());
  }
  Routing put(const HostRouting& r) {
    return {static_cast<int32_t*>(side.put(r.expert.data(), r.expert.size() * 4)),
            side.floats(r.weight)};
  }
  std::vector<float> run(const HostRouting& routing, std::span<const float> x, bool steps) {
    const int64_t rows = static_cast<int64_t>(x.size()) / shape.width;
    upload(rows, steps);
    void* y = side.act(rows * shape.width);
    side->experts(spec, put(routing), side.act(x), rows, y);
    return side.read(y, rows * shape.width);
  }
};

}  // namespace cbench::testing
