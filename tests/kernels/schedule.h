// What the tests of mixers with caches and states run: several sequences, in pieces and steps.
#pragma once

#include <algorithm>

#include "kernels/support.h"

namespace cbench::testing {

constexpr int kSlots = 6;
constexpr int64_t kLength = 256;
constexpr Capacity kCapacity{
    .tokens = 640, .sequences = kSlots, .slots = kSlots, .max_length = kLength, .logits_rows = 8};

/// Prefill of several sequences, a second piece of each, then steps.
inline std::vector<TestBatch> schedule() {
  const int32_t first[kSlots] = {1, 63, 64, 65, 130, 3}, second[kSlots] = {64, 1, 65, 2, 3, 100};
  std::vector<TestBatch> batches(5);
  for (int32_t s = 0; s < kSlots; s++) {
    const int32_t slot = kSlots - 1 - s;
    batches[0].add(slot, 0, first[s]);
    batches[1].add(slot, first[s], second[s]);
    batches[2].add(slot, first[s] + second[s], 1);
    if (s % 2) batches[3].add(slot, first[s] + second[s] + 1, 1);
  }
  batches[4].add(kSlots - 1, 0, 1);  // a slot starts again, by a single row
  return batches;
}

/// The schedule through `together` and, sequence by sequence, through `alone` leaves the same bits
/// in outputs and states. A rig has width (columns in), run(batch, in) and states();
/// `input(batch)` makes a batch's.
template <typename Rig, typename Input>
void expect_same_bits_alone(Rig& together, Rig& alone, const Input& input) {
  for (const TestBatch& batch : schedule()) {
    const auto in = input(batch);
    const auto all = together.run(batch, in);
    const int64_t out = static_cast<int64_t>(all.size()) / batch.rows();
    const bool steps = batch.rows() == static_cast<int64_t>(batch.spans.size());
    const bool comparable = steps || std::all_of(batch.spans.begin(), batch.spans.end(),
                                                 [](const Span& span) { return span.count > 1; });
    if (!comparable) {  // a row alone would be a step: bring both to the same states
      alone.run(batch, in);
      continue;
    }
    for (const Span& span : batch.spans) {
      TestBatch one;
      one.add(span.slot, span.start, span.count);
      const auto got = alone.run(
          one, std::span(in).subspan(span.row * together.width, span.count * together.width));
      EXPECT_TRUE(std::equal(got.begin(), got.end(), all.begin() + span.row * out))
          << "slot " << span.slot;
    }
    EXPECT_EQ(together.states(), alone.states());
  }
}

}  // namespace cbench::testing
