// The models against logits that transformers computed, and against themselves in other batches.
#include <cstring>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/support.h"

namespace cbench::testing {
namespace {

constexpr double kGoldenTolerance = 2e-4;       // fp32 against fp32, reached: see docs/runtime.md
constexpr double kPackedTolerance = 1e-6;       // both by the same product routine
constexpr double kPackedShortTolerance = 2e-5;  // alone by the GEMV, packed by the GEMM
constexpr size_t kGemvRows = 16;                // runtime/cpu/linear.h

const char* const kFolders[] = {
    "qwen3_5_tied",       "qwen3_5_untied", "qwen3_5_shapes",         "qwen3_5_wide",
    "qwen3_5_multimodal", "llama_tied",     "llama_untied_bias",      "llama_rope_llama3",
    "qwen3_dense",        "qwen3_5_moe",    "qwen3_5_moe_multimodal", "gemma4_moe",
    "gemma4_multimodal",  "nemotron_h",     "nemotron_h_multimodal"};

std::vector<int32_t> ints(const Tensor& tensor) {
  std::vector<int32_t> out(static_cast<size_t>(tensor.elements()));
  std::memcpy(out.data(), tensor.bytes.data(), tensor.bytes.size());
  return out;
}

struct Sequence {
  std::vector<int32_t> ids;
  std::vector<float> logits;  // [ids, vocab]
};

class Golden : public ::testing::TestWithParam<const char*> {
 protected:
  Golden()
      : dir_(std::string(CBENCH_FIXTURES "/golden/") + GetParam()),
        file_(dir_ + "/golden.safetensors"),
        fixture_(
            dir_,
            {.tokens = 1024, .sequences = 8, .slots = 8, .max_length = 256, .logits_rows = 100}) {
    for (int i = 0;; ++i) {
      const Tensor* ids = find("seq" + std::to_string(i) + ".ids");
      if (!ids) break;
      sequences_.push_back(
          {ints(*ids), tensor_floats(*find("seq" + std::to_string(i) + ".logits"))});
    }
  }
  const Tensor* find(const std::string& name) const {
    for (const Tensor& tensor : file_.tensors()) {
      if (tensor.name == name) return &tensor;
    }
    return nullptr;
  }
  Model& model() { return *fixture_.model; }
  size_t vocab() { return static_cast<size_t>(model().config().vocab); }

  std::string dir_;
  TensorFile file_;
  Fixture fixture_;
  std::vector<Sequence> sequences_;
};

TEST_P(Golden, PrefillOneByOne) {
  ASSERT_FALSE(sequences_.empty());
  double worst = 0;
  for (const Sequence& sequence : sequences_) {
    const auto logits = run_packed(model(), {{0, 0, sequence.ids}});
    worst = std::max(worst, relative_error(logits, sequence.logits));
  }
  RecordProperty("relative_error", std::to_string(worst));
  std::printf("%s: relative error %.2e\n", GetParam(), worst);
  EXPECT_LT(worst, kGoldenTolerance);
}

TEST_P(Golden, PrefillPacked) {
  std::vector<Piece> pieces;
  std::vector<float> expected;
  for (size_t i = 0; i < sequences_.size(); ++i) {
    pieces.push_back({static_cast<int32_t>(sequences_.size() - 1 - i), 0, sequences_[i].ids});
    expected.insert(expected.end(), sequences_[i].logits.begin(), sequences_[i].logits.end());
  }
  EXPECT_LT(relative_error(run_packed(model(), pieces), expected), kGoldenTolerance);
}

TEST_P(Golden, StepByStep) {
  // All sequences side by side, one token each; a finished one leaves the batch.
  const auto longest = std::max_element(
      sequences_.begin(), sequences_.end(),
      [](const Sequence& a, const Sequence& b) { return a.ids.size() < b.ids.size(); });
  double worst = 0;
  for (size_t t = 0; t < longest->ids.size(); ++t) {
    std::vector<Piece> pieces;
    std::vector<float> expected;
    for (size_t i = 0; i < sequences_.size(); ++i) {
      const Sequence& sequence = sequences_[i];
      if (t >= sequence.ids.size()) continue;
      pieces.push_back({static_cast<int32_t>(i), static_cast<int32_t>(t), {sequence.ids[t]}});
      const auto row = sequence.logits.begin() + static_cast<ptrdiff_t>(t * vocab());
      expected.insert(expected.end(), row, row + static_cast<ptrdiff_t>(vocab()));
    }
    worst = std::max(worst, relative_error(run_packed(model(), pieces), expected));
  }
  EXPECT_LT(worst, kGoldenTolerance);
}

TEST_P(Golden, PrefillThenContinue) {
  // prefill(n) == prefill(n - k) + k steps, and == prefill(n - k) + prefill(k), at chunk borders.
  const Sequence& longest = sequences_.back();
  const auto total = static_cast<int32_t>(longest.ids.size());
  for (const int32_t cut : {1, 3, 31, 63, 64, 65, 66, 127, 128, 129}) {
    if (cut >= total) continue;
    const auto tail = [&](int32_t from) {
      return std::span(longest.logits).subspan(static_cast<size_t>(from) * vocab());
    };
    const std::vector<int32_t> head(longest.ids.begin(), longest.ids.begin() + cut);
    const std::vector<int32_t> rest(longest.ids.begin() + cut, longest.ids.end());
    run_packed(model(), {{3, 0, head}});
    EXPECT_LT(relative_error(run_packed(model(), {{3, cut, rest}}), tail(cut)), kGoldenTolerance)
        << "cut " << cut;
    run_packed(model(), {{5, 0, head}});
    for (int32_t t = cut; t < std::min(total, cut + 5); ++t) {
      const auto logits = run_packed(model(), {{5, t, {longest.ids[static_cast<size_t>(t)]}}});
      EXPECT_LT(relative_error(logits, tail(t).subspan(0, vocab())), kGoldenTolerance)
          << "cut " << cut << " step " << t;
    }
  }
}

TEST_P(Golden, GreedyIds) {
  const auto prompt = ints(*find("greedy.prompt"));
  const auto expected = ints(*find("greedy.ids"));
  const auto logits = run_packed(model(), {{2, 0, prompt}});
  int32_t next = argmax(std::span(logits).last(vocab()));
  std::vector<int32_t> stepped = {next};
  model().generate(2, next, static_cast<int32_t>(prompt.size()),
                   static_cast<int64_t>(expected.size()) - 1, [&](int32_t id) {
                     stepped.push_back(id);
                     return true;
                   });
  EXPECT_EQ(stepped, expected);

  // The same by forward + argmax, in another slot.
  run_packed(model(), {{4, 0, prompt}});
  std::vector<int32_t> forwarded = {next};
  auto position = static_cast<int32_t>(prompt.size());
  while (forwarded.size() < expected.size()) {
    next = argmax(run_packed(model(), {{4, position++, {next}}}));
    forwarded.push_back(next);
  }
  EXPECT_EQ(forwarded, expected);
}

TEST_P(Golden, GenerateStopsAndContinues) {
  const auto prompt = ints(*find("greedy.prompt"));
  const auto expected = ints(*find("greedy.ids"));
  run_packed(model(), {{0, 0, prompt}});
  std::vector<int32_t> ids = {expected[0]};
  const auto start = static_cast<int32_t>(prompt.size());
  model().generate(0, expected[0], start, 20, [&](int32_t id) {
    ids.push_back(id);
    return ids.size() < 5;
  });
  model().generate(0, ids.back(), start + 4, 4, [&](int32_t id) {
    ids.push_back(id);
    return true;
  });
  EXPECT_EQ(ids, std::vector<int32_t>(expected.begin(), expected.begin() + 9));
}

TEST_P(Golden, RepeatsTheSameBits) {
  std::vector<Piece> pieces;
  for (size_t i = 0; i < sequences_.size(); ++i) {
    pieces.push_back({static_cast<int32_t>(i), 0, sequences_[i].ids});
  }
  EXPECT_EQ(run_packed(model(), pieces), run_packed(model(), pieces));
}

TEST_P(Golden, NeighboursDoNotMatter) {
  std::vector<Piece> pieces;
  for (size_t i = 0; i < sequences_.size(); ++i) {
    pieces.push_back({static_cast<int32_t>(i), 0, sequences_[i].ids});
  }
  const auto packed = run_packed(model(), pieces);
  size_t first = 0;
  double worst_long = 0, worst_short = 0;
  for (const Piece& piece : pieces) {
    const size_t count = piece.ids.size() * vocab();
    const auto alone = run_packed(model(), {{0, 0, piece.ids}});
    double& worst = piece.ids.size() > kGemvRows ? worst_long : worst_short;
    worst = std::max(worst, relative_error(std::span(packed).subspan(first, count), alone));
    first += count;
  }
  std::printf("%s: packed against alone %.2e, short sequences %.2e\n", GetParam(), worst_long,
              worst_short);
  EXPECT_LT(worst_long, kPackedTolerance);
  EXPECT_LT(worst_short, kPackedShortTolerance);
}

INSTANTIATE_TEST_SUITE_P(Checkpoints, Golden, ::testing::ValuesIn(kFolders),
                         [](const auto& test) { return std::string(test.param); });

}  // namespace
}  // namespace cbench::testing
