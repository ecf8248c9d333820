// Fixtures of the runtime tests: checkpoints with a model bound to them, and comparisons.
#pragma once

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "model/config.h"
#include "package/safetensors.h"
#include "runtime/checkpoint_source.h"
#include "runtime/model.h"
#include "util/file.h"

namespace cbench::testing {

/// A checkpoint directory bound to the CPU.
struct Fixture {
  std::string dir;
  ModelConfig config;
  TensorStore store;
  std::unique_ptr<Ops> ops = make_cpu_ops();
  std::unique_ptr<CheckpointSource> source;
  std::unique_ptr<Model> model;

  explicit Fixture(const std::string& path, const Capacity& capacity)
      : dir(path),
        config(parse_model_config(read_file(path + "/config.json"), "config.json")),
        store(TensorStore::open_checkpoint(path)) {
    source = std::make_unique<CheckpointSource>(*ops, store);
    model = std::make_unique<Model>(*ops, config, *source, capacity);
  }
};

/// Sequences packed into one forward; returns the logits [rows, vocab] of every row, in order.
struct Piece {
  int32_t slot;
  int32_t start;
  std::vector<int32_t> ids;
};
inline std::vector<float> run_packed(Model& model, const std::vector<Piece>& pieces) {
  std::vector<int32_t> ids;
  std::vector<Span> spans;
  for (const Piece& piece : pieces) {
    spans.push_back({piece.slot, piece.start, static_cast<int32_t>(ids.size()),
                     static_cast<int32_t>(piece.ids.size())});
    ids.insert(ids.end(), piece.ids.begin(), piece.ids.end());
  }
  model.forward({ids, spans});
  const auto vocab = static_cast<size_t>(model.config().vocab);
  std::vector<float> logits(ids.size() * vocab);
  const auto chunk = static_cast<size_t>(model.limits().logits_rows);
  for (size_t first = 0; first < ids.size(); first += chunk) {
    std::vector<int32_t> rows;
    for (size_t i = first; i < std::min(ids.size(), first + chunk); ++i) {
      rows.push_back(static_cast<int32_t>(i));
    }
    model.logits(rows, logits.data() + first * vocab);
  }
  return logits;
}

/// One sequence from its start in slot 0; the logits of its last token.
inline std::vector<float> run_packed_last(Model& model, const std::vector<int32_t>& ids) {
  const Span span{0, 0, 0, static_cast<int32_t>(ids.size())};
  model.forward({ids, {&span, 1}});
  std::vector<float> logits(static_cast<size_t>(model.config().vocab));
  const int32_t last = span.count - 1;
  model.logits({&last, 1}, logits.data());
  return logits;
}

/// max |a - b| / max |b|; infinity if a value is not finite or the sizes differ.
inline double relative_error(std::span<const float> a, std::span<const float> b) {
  if (a.size() != b.size() || a.empty()) return INFINITY;
  double worst = 0, largest = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    if (!std::isfinite(a[i])) return INFINITY;
    worst = std::max(worst, std::abs(double{a[i]} - double{b[i]}));
    largest = std::max(largest, std::abs(double{b[i]}));
  }
  return worst / largest;
}

inline int32_t argmax(std::span<const float> row) {
  return static_cast<int32_t>(std::max_element(row.begin(), row.end()) - row.begin());
}

}  // namespace cbench::testing
