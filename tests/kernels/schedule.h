// What the tests of mixers with caches and states run: several sequences, in pieces and steps.
#pragma once

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

}  // namespace cbench::testing
