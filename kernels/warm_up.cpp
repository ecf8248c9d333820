// A small model through every path of the backend.
#include "warm_up.h"

#include <numeric>
#include <vector>

#include "cuda_ops.h"
#include "model/config.h"
#include "runtime/model.h"
#include "runtime/synthetic_source.h"

namespace cbench::cuda {
namespace {

constexpr const char* kConfig = R"({
  "architectures": ["Qwen3_5ForCausalLM"], "model_type": "qwen3_5_text", "vocab_size": 2048,
  "hidden_size": 1024, "intermediate_size": 2048, "num_hidden_layers": 2,
  "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 256,
  "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 128,
  "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4, "rms_norm_eps": 1e-6,
  "rope_theta": 1e7, "partial_rotary_factor": 0.25, "attn_output_gate": true,
  "hidden_act": "silu", "tie_word_embeddings": false, "max_position_embeddings": 4096,
  "layer_types": ["linear_attention", "full_attention"]})";
constexpr int kSequences = 4, kLength = 512;

}  // namespace

void warm_up_device(int device) {
  CudaOps ops(device);
  SyntheticSource weights(ops);
  Capacity capacity;
  capacity.tokens = kSequences * kLength;
  capacity.sequences = capacity.slots = kSequences;
  capacity.max_length = 2 * kLength;
  capacity.logits_rows = 256;
  const ModelConfig config = parse_model_config(kConfig, "warm-up model");
  Model model(ops, config, weights, capacity);
  auto* logits =
      ops.arena().allocate<float>(static_cast<size_t>(capacity.logits_rows * config.vocab),
                                  Category::kLogits, "warm-up logits");
  std::vector<int32_t> ids(static_cast<size_t>(capacity.tokens), 1), rows(256);
  std::iota(rows.begin(), rows.end(), 0);
  std::vector<Span> spans, steps;
  for (int32_t i = 0; i < kSequences; ++i) {
    spans.push_back({i, 0, i * kLength, kLength});
    steps.push_back({i, kLength, i, 1});
  }
  model.forward({ids, spans});
  model.logits(rows, logits);
  model.forward({std::span(ids).first(kSequences), steps});
  model.logits(std::span(rows).first(kSequences), logits);
  model.generate(0, 1, kLength + 1, 2, [](int32_t) { return true; });
  ops.trim();
}

}  // namespace cbench::cuda
