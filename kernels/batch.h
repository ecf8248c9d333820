// A packed batch as the device reads it, and how the host fills it.
#pragma once

#include <cstdint>
#include <vector>

#include <cuda_runtime_api.h>

#include "runtime/ops.h"

namespace cbench::cuda {

/// Rows of one span that a block works on together: at most kTileRows, from a multiple of kTileRows
/// of the span's rows.
constexpr int kTileRows = 64;
struct RowTile {
  int32_t span;
  int32_t offset;  ///< first row, counted from the span's first
};
struct SpanInfo {
  int32_t slot;
  int32_t row;  ///< first row in the batch
  int32_t count;
  int32_t first_tile;  ///< tiles of a span are consecutive
};

/// Arrays in device memory. Positions are the only truth about where a span starts, because a
/// recorded step advances them: start = positions[row].
struct DeviceBatch {
  int32_t* ids = nullptr;         ///< [tokens]
  int32_t* positions = nullptr;   ///< [tokens]
  int32_t* row_span = nullptr;    ///< [tokens]
  SpanInfo* spans = nullptr;      ///< [sequences]
  RowTile* tiles = nullptr;       ///< [tokens / kTileRows + sequences], in span order
  int32_t* long_first = nullptr;  ///< tile indices, those with the most context first
  int32_t rows = 0, span_count = 0, tile_count = 0;
};

/// The same on the host, in one block of pinned memory that is copied at once.
class BatchStage {
 public:
  ~BatchStage();
  /// Bytes of device memory for batches up to the capacity.
  static size_t bytes(const Capacity& capacity);
  void allocate(const Capacity& capacity, void* device);
  /// Fills and copies; the returned view has the device pointers.
  DeviceBatch upload(const Batch& batch, cudaStream_t stream);

 private:
  DeviceBatch place(void* base) const;
  Capacity capacity_;
  void* host_ = nullptr;
  void* device_ = nullptr;
  cudaEvent_t copied_ = nullptr;
};

}  // namespace cbench::cuda
