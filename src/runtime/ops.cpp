// What the backends share, and the answer of a build without CUDA.
#include "runtime/ops.h"

#include "util/error.h"

namespace cbench {
namespace {

class PlainSlots final : public Slots {
 public:
  PlainSlots(Ops& ops, size_t count, size_t bytes) : ops_(ops) {
    for (size_t i = 0; i < count; ++i) {
      slots_.push_back(ops.arena().allocate(bytes, Category::kWeights, "slot of streamed weights"));
    }
  }
  ~PlainSlots() override {
    for (void* slot : slots_) ops_.arena().release(slot);
  }
  void* data(size_t slot) override { return slots_[slot]; }
  void pin(void*, size_t) override {}
  void fill(size_t slot, const void* host, size_t bytes) override {
    ops_.copy_in(slots_[slot], host, bytes);
  }
  void arrive(size_t) override {}
  void leave(size_t) override {}

 private:
  Ops& ops_;
  std::vector<void*> slots_;
};

}  // namespace

std::unique_ptr<Slots> Ops::make_slots(size_t count, size_t bytes) {
  return std::make_unique<PlainSlots>(*this, count, bytes);
}

int64_t Projection::rows() const {
  int64_t total = 0;
  for (const Linear& part : parts) total += part.rows;
  return total;
}

#if !defined(CBENCH_HAVE_CUDA)
std::unique_ptr<Ops> make_cuda_ops(int) {
  throw EnvironmentError("no_cuda", "this cbench was built without CUDA; use --device cpu");
}
#endif

}  // namespace cbench
