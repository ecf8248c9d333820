// Lays a batch out for the device.
#include "batch.h"

#include <algorithm>
#include <numeric>
#include <string>

#include "check.h"
#include "util/error.h"

namespace cbench::cuda {
namespace {

size_t aligned(size_t bytes) { return (bytes + 255) / 256 * 256; }
size_t tile_capacity(const Capacity& c) {
  return static_cast<size_t>(c.tokens / kTileRows + c.sequences + 1);
}

}  // namespace

BatchStage::~BatchStage() {
  if (copied_) cudaEventDestroy(copied_);
  if (host_) cudaFreeHost(host_);
}

size_t BatchStage::bytes(const Capacity& c) {
  return 3 * aligned(c.tokens * sizeof(int32_t)) + aligned(c.sequences * sizeof(SpanInfo)) +
         aligned(tile_capacity(c) * sizeof(RowTile)) + aligned(tile_capacity(c) * sizeof(int32_t));
}

DeviceBatch BatchStage::place(void* base) const {
  auto* at = static_cast<unsigned char*>(base);
  const auto take = [&](size_t n) {
    unsigned char* mine = at;
    at += aligned(n);
    return static_cast<void*>(mine);
  };
  DeviceBatch b;
  b.ids = static_cast<int32_t*>(take(capacity_.tokens * sizeof(int32_t)));
  b.positions = static_cast<int32_t*>(take(capacity_.tokens * sizeof(int32_t)));
  b.row_span = static_cast<int32_t*>(take(capacity_.tokens * sizeof(int32_t)));
  b.spans = static_cast<SpanInfo*>(take(capacity_.sequences * sizeof(SpanInfo)));
  b.tiles = static_cast<RowTile*>(take(tile_capacity(capacity_) * sizeof(RowTile)));
  b.long_first = static_cast<int32_t*>(take(tile_capacity(capacity_) * sizeof(int32_t)));
  return b;
}

void BatchStage::allocate(const Capacity& capacity, void* device) {
  capacity_ = capacity;
  device_ = device;
  CBENCH_CUDA(cudaMallocHost(&host_, bytes(capacity)));
  CBENCH_CUDA(cudaEventCreateWithFlags(&copied_, cudaEventDisableTiming));
}

DeviceBatch BatchStage::upload(const Batch& batch, cudaStream_t stream) {
  const auto rows = static_cast<int64_t>(batch.ids.size());
  const auto spans = static_cast<int64_t>(batch.spans.size());
  if (!device_ || rows > capacity_.tokens || spans > capacity_.sequences) {
    throw UsageError("batch", "a batch of " + std::to_string(rows) + " tokens in " +
                                  std::to_string(spans) + " sequences exceeds the capacity of " +
                                  std::to_string(capacity_.tokens) + " in " +
                                  std::to_string(capacity_.sequences));
  }
  CBENCH_CUDA(cudaEventSynchronize(copied_));  // the last copy has left the staging block
  DeviceBatch b = place(host_);
  std::vector<int32_t> context;
  int32_t tile = 0, next = 0;
  for (int32_t s = 0; s < spans; s++) {
    const Span& span = batch.spans[s];
    if (span.row != next || span.count < 1)
      throw UsageError("batch", "spans do not cover the rows");
    b.spans[s] = {span.slot, span.row, span.count, tile};
    for (int32_t i = 0; i < span.count; i++) {
      b.ids[next] = batch.ids[next];
      b.positions[next] = span.start + i;
      b.row_span[next++] = s;
    }
    for (int32_t offset = 0; offset < span.count; offset += kTileRows) {
      b.tiles[tile++] = {s, offset};
      context.push_back(span.start + std::min(offset + kTileRows, span.count));
    }
  }
  if (next != rows) throw UsageError("batch", "spans do not cover the rows");
  std::iota(b.long_first, b.long_first + tile, 0);
  std::stable_sort(b.long_first, b.long_first + tile,
                   [&](int32_t i, int32_t j) { return context[i] > context[j]; });
  CBENCH_CUDA(cudaMemcpyAsync(device_, host_, bytes(capacity_), cudaMemcpyHostToDevice, stream));
  CBENCH_CUDA(cudaEventRecord(copied_, stream));
  DeviceBatch device = place(device_);
  device.rows = static_cast<int32_t>(rows);
  device.span_count = static_cast<int32_t>(spans);
  device.tile_count = tile;
  return device;
}

}  // namespace cbench::cuda
