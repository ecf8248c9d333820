// The current batch of the CPU backend.
#include "runtime/cpu/batch.h"

namespace cbench::cpu {

void CurrentBatch::reserve(const Capacity& capacity) {
  const auto tokens = static_cast<size_t>(capacity.tokens);
  ids.reserve(tokens);
  position.reserve(tokens);
  span_of.reserve(tokens);
  spans.reserve(static_cast<size_t>(capacity.sequences));
}

void CurrentBatch::set(const Batch& batch) {
  ids.assign(batch.ids.begin(), batch.ids.end());
  spans.assign(batch.spans.begin(), batch.spans.end());
  position.clear();
  span_of.clear();
  for (size_t s = 0; s < spans.size(); ++s) {
    for (int32_t i = 0; i < spans[s].count; ++i) {
      position.push_back(spans[s].start + i);
      span_of.push_back(static_cast<int32_t>(s));
    }
  }
}

void CurrentBatch::advance() {
  for (Span& span : spans) ++span.start;
  for (int32_t& value : position) ++value;
}

}  // namespace cbench::cpu
