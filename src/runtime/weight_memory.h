// Where a model's matrices lie: all on the device, or some blocks' in host memory, from where they
// stream through two device slots while the model runs.
//
// A streamed block is one image in page-locked host memory, laid out as in its slot: a copy a pass.
// Its matrices are bound to addresses inside the slot, so ops know nothing of it. While block i
// computes, the next streamed block is on its way into the other slot.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "model/config.h"
#include "runtime/ops.h"

namespace cbench {

/// Which blocks stream.
struct StreamPlan {
  static constexpr size_t kSlots = 2;
  std::vector<size_t>
      bytes;  ///< room for a streamed block's matrices; 0 = resident. Empty: all are
  bool streams() const { return slot_bytes() > 0; }
  size_t slot_bytes() const;  ///< of the largest
  size_t host_bytes() const;  ///< of all
};

/// Bytes of a block's matrices with `element` bytes per weight, each rounded up to the alignment.
size_t block_bytes(const ModelConfig& config, size_t block, size_t element);

/// The fewest blocks that must stream so that the others and the slots take at most `budget` bytes.
/// Large blocks stream first, evenly spread, so that copies go on while resident blocks compute.
/// Throws EnvironmentError ("out_of_memory") if not even the slots fit.
StreamPlan plan_stream(const ModelConfig& config, size_t element, int64_t budget);

/// What device memory leaves for the matrices of the blocks: what is free less `planned` (caches,
/// activations, workspace), the embeddings, `more` bytes, and a reserve for what is small.
int64_t block_budget(Ops& ops, const ModelConfig& config, const ArenaReport& planned, int64_t more);

/// Bytes of host memory that this process may still take.
int64_t available_host_memory();

class WeightMemory {
 public:
  explicit WeightMemory(Ops& ops) : ops_(ops) {}  ///< all on the device
  /// Throws EnvironmentError ("host_memory") if the images need more than `host` bytes.
  WeightMemory(Ops& ops, StreamPlan plan, int64_t host = available_host_memory());
  ~WeightMemory();
  WeightMemory(const WeightMemory&) = delete;
  WeightMemory& operator=(const WeightMemory&) = delete;

  // While the model is bound: what is allocated between open() and close() belongs to that block.
  void open(size_t block);
  void close();
  void* allocate(size_t bytes, Category category, const std::string& name);
  /// Fills part of an allocation from host memory, before its block is closed.
  void write(void* to, const void* from, size_t bytes);

  // While it runs: around the ops that read the block's matrices, block after block.
  void arrive(size_t block);
  void leave(size_t block);

  /// Bytes of host memory that hold streamed matrices.
  int64_t streamed() const;
  /// Bytes of the arena that are slots.
  int64_t slots() const { return slots_bytes_; }

 private:
  static constexpr size_t kNone = SIZE_MAX;
  struct Image {
    char* data = nullptr;
    size_t bytes = 0;  ///< mapped
    size_t used = 0;
    size_t slot = 0;
    size_t next = 0;  ///< the block that takes the slot after this one
  };
  bool streams(size_t block) const { return block < images_.size() && images_[block].bytes > 0; }
  Image* opened();
  void fill(size_t block);

  Ops& ops_;
  std::vector<Image> images_;  ///< by block; empty if none streams
  std::vector<size_t> holds_;  ///< by slot: the block in it or on its way; kNone
  size_t open_ = kNone;
  std::unique_ptr<Slots> slots_;
  int64_t slots_bytes_ = 0;
};

}  // namespace cbench
