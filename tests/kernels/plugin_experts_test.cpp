// Experts that a plugin serves on the GPU: with its own products, with dequantized rows alone, with
// a transform; forwards and recorded steps.
#include <cuda_runtime_api.h>

#include "experts.h"
#include "kernels/experts_rig.h"
#include "runtime/plugin_matrix.h"

namespace cbench::testing {
namespace {

/// What a test's plugin keeps of a matrix: BF16 rows, and its columns negated if it transforms.
struct StoredExperts {
  const void* bf16;
  int64_t rows, cols, share;
  int declined_from = 1 << 30;  ///< pairs from which `experts` declines
  int served = 0;
};

int dequantize(void* m, int64_t expert, int64_t row, int64_t rows, void* out, cb_stream stream) {
  const auto& s = *static_cast<StoredExperts*>(m);
  const char* from = static_cast<const char*>(s.bf16) + (expert * s.rows + row) * s.cols * 2;
  return cudaMemcpyAsync(out, from, static_cast<size_t>(rows * s.cols) * 2,
                         cudaMemcpyDeviceToDevice, static_cast<cudaStream_t>(stream)) == cudaSuccess
             ? CB_OK
             : CB_ERROR;
}
/// The runtime's own kernel stands in for the plugin's; rows are pair / share in these tests.
int experts(void* m, const void* x, const int32_t* expert, const int32_t*, int64_t n, void* y,
            void*, cb_stream stream) {
  auto& s = *static_cast<StoredExperts*>(m);
  if (n >= s.declined_from) return CB_UNSUPPORTED;
  s.served++;
  cuda::ExpertProduct product;
  product.x = x, product.share = s.share, product.w = s.bf16, product.y = y;
  product.n = s.rows, product.k = s.cols;
  cuda::expert_pairs(product, expert, nullptr, 0, n, static_cast<cudaStream_t>(stream));
  return CB_OK;
}
/// T swaps the halves of x.
int swap_halves(void* m, const void* x, int64_t tokens, void* to, cb_stream stream) {
  const auto half = static_cast<size_t>(static_cast<StoredExperts*>(m)->cols);  // bytes
  const auto s = static_cast<cudaStream_t>(stream);
  const auto move = [&](size_t at, size_t from) {
    return cudaMemcpy2DAsync(static_cast<char*>(to) + at, 2 * half,
                             static_cast<const char*>(x) + from, 2 * half, half,
                             static_cast<size_t>(tokens), cudaMemcpyDeviceToDevice, s);
  };
  return move(0, half) == cudaSuccess && move(half, 0) == cudaSuccess ? CB_OK : CB_ERROR;
}

/// A rig whose matrices go through a plugin.
struct PluggedRig {
  ExpertRig rig;
  cb_plugin table{};
  StoredExperts gate_up, down;
  std::unique_ptr<PluginMatrix> gate_up_plugin, down_plugin;

  PluggedRig(const ExpertShape& s, bool with_experts, bool transform)
      : rig(make_cuda_ops(0), s),
        gate_up{rig.spec.gate_up.bf16, rig.spec.gate_up.rows, s.width, s.top_k},
        down{rig.spec.down.bf16, s.width, s.inner, 1} {
    table.abi = CB_ABI_VERSION, table.size = sizeof table;
    table.dequantize = dequantize;
    if (with_experts) table.experts = experts;
    if (transform) {
      table.transform = swap_halves;
      gate_up.bf16 = rig.side.bf16(swapped(rig.gate_up, s.width));
      down.bf16 = rig.side.bf16(swapped(rig.down, s.inner));
    }
    gate_up_plugin = std::make_unique<PluginMatrix>(table, &gate_up, "gate_up", gate_up.rows,
                                                    gate_up.cols, s.experts);
    down_plugin =
        std::make_unique<PluginMatrix>(table, &down, "down", down.rows, down.cols, s.experts);
    rig.spec.gate_up.bf16 = rig.spec.down.bf16 = nullptr;
    rig.spec.gate_up.plugin = gate_up_plugin.get();
    rig.spec.down.plugin = down_plugin.get();
    rig.reserve();
  }
  static std::vector<float> swapped(std::vector<float> w, int64_t cols) {
    for (auto row = w.begin(); row != w.end(); row += cols)
      std::rotate(row, row + cols / 2, row + cols);
    return w;
  }
};

const ExpertShape kShapes[] = {{16, 4, 128, 96, Activation::kSilu},
                               {40, 6, 64, 32, Activation::kRelu2},
                               {6, 2, 20, 14, Activation::kGeluTanh}};

TEST(PluginExperts, EqualStoredOnes) {
  SKIP_WITHOUT_GPU();
  for (const ExpertShape& shape : kShapes)
    for (const bool with_experts : {false, true})
      for (const bool transform : {false, true}) {
        ExpertRig stored(make_cuda_ops(0), shape);
        stored.reserve();
        PluggedRig plugged(shape, with_experts, transform && !with_experts);
        plugged.gate_up.declined_from = plugged.down.declined_from = 300;
        Random random(51);
        for (const auto& [rows, steps] :
             {std::pair{1, true}, {5, true}, {2, false}, {300, false}}) {
          const HostRouting routing(random, rows, shape);
          const auto x = random_values(random, rows * shape.width, 2);
          const auto expected = stored.run(routing, x, steps);
          const auto actual = plugged.rig.run(routing, x, steps);
          EXPECT_LT(distance(actual, expected), kSomeRoundings)
              << shape.experts << " experts, own products " << with_experts << ", " << rows
              << " rows, steps " << steps;
          if (!with_experts && !transform && !steps) {
            EXPECT_EQ(actual, expected) << rows;
          }
        }
        EXPECT_EQ(plugged.gate_up.served, with_experts ? 3 : 0);
      }
}

TEST(PluginExperts, MoreThanThePanelHolds) {
  SKIP_WITHOUT_GPU();
  const ExpertShape shape{6, 2, 2048, 4096, Activation::kSilu};  // 34 MB each, of 128 MiB
  ExpertRig stored(make_cuda_ops(0), shape);
  stored.reserve();
  PluggedRig plugged(shape, false, false);
  Random random(53);
  const HostRouting routing(random, 9, shape);
  const auto x = random_values(random, 9 * shape.width, 2);
  EXPECT_EQ(plugged.rig.run(routing, x, false), stored.run(routing, x, false));
}

TEST(PluginExperts, RecordedStepsFollowTheRouting) {
  SKIP_WITHOUT_GPU();
  for (const bool with_experts : {false, true}) {
    const ExpertShape shape = kShapes[0];
    PluggedRig plugged(shape, with_experts, false);
    ExpertRig& rig = plugged.rig;
    Random random(52);
    const HostRouting first(random, 1, shape);
    const Routing routing = rig.put(first);
    const auto x = random_values(random, shape.width, 2);
    void* in = rig.side.act(x);
    void* y = rig.side.act(shape.width);
    rig.upload(1, true);
    const auto replay = rig.side->record([&] { rig.side->experts(rig.spec, routing, in, 1, y); });
    for (int i = 0; i < 3; i++) {
      const HostRouting next(random, 1, shape);
      rig.side->copy_in(routing.expert, next.expert.data(), next.expert.size() * 4);
      rig.side->copy_in(routing.weight, next.weight.data(), next.weight.size() * 4);
      replay->run();
      const auto got = rig.side.read(y, shape.width);
      EXPECT_EQ(got, rig.run(next, x, true)) << with_experts;
    }
  }
}

}  // namespace
}  // namespace cbench::testing
