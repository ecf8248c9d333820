#include "eval/generation.h"

#include <algorithm>
#include <filesystem>

#include "eval/grading/stops.h"
#include "util/error.h"
#include "util/file.h"
#include "util/json.h"

namespace cbench {
namespace {

/// One answer being written.
struct Active {
  size_t request;
  int32_t slot;
  int32_t length;  // tokens in the slot's cache
  int32_t next;    // newest token, not in the cache yet
  StreamDecoder decoder;
  StopMatcher stops;
};

class Generator {
 public:
  Generator(Engine& engine, const Tokenizer& tokenizer, std::span<const int32_t> eos,
            std::span<const GenerationRequest> requests)
      : engine_(engine),
        tokenizer_(tokenizer),
        eos_(eos),
        requests_(requests),
        out_(requests.size()) {
    const Capacity& capacity = engine.capacity();
    for (int64_t slot = std::min(capacity.slots, capacity.sequences) - 1; slot >= 0; --slot) {
      free_.push_back(static_cast<int32_t>(slot));
    }
  }

  std::vector<Generation> run(const OnProgress& progress) {
    while (started_ < requests_.size() || !active_.empty()) {
      if (started_ < requests_.size() && !free_.empty()) {
        prefill();
      } else {
        step();
      }
      if (progress) progress(static_cast<double>(finished_));
    }
    return std::move(out_);
  }

 private:
  /// Starts as many requests as there are free slots and room for rows in one forward.
  void prefill() {
    const Capacity& capacity = engine_.capacity();
    std::vector<EngineSequence> sequences;
    int64_t rows = 0;
    const size_t first_new = active_.size();
    while (started_ < requests_.size() && !free_.empty()) {
      const GenerationRequest& request = requests_[started_];
      const auto length = static_cast<int64_t>(request.prompt.size());
      if (length == 0 || length > capacity.tokens ||
          length + request.max_tokens > capacity.max_length) {
        throw UsageError("prompt_too_long", "a prompt of " + std::to_string(length) +
                                                " tokens does not fit the engine's capacity");
      }
      if (rows + length > capacity.tokens) break;
      rows += length;
      const int32_t slot = free_.back();
      free_.pop_back();
      sequences.push_back({slot, 0, request.prompt, static_cast<int32_t>(length - 1)});
      active_.push_back({started_, slot, static_cast<int32_t>(length), 0, StreamDecoder(tokenizer_),
                         StopMatcher(request.stops)});
      ++started_;
    }
    advance(first_new, sequences);
  }

  void step() {
    std::vector<EngineSequence> sequences;
    for (Active& a : active_) {
      sequences.push_back({a.slot, a.length, {&a.next, 1}, 0});
      ++a.length;
    }
    advance(0, sequences);
  }

  /// Runs the sequences, which belong to active_[first...], and gives each its next token.
  void advance(size_t first, std::span<const EngineSequence> sequences) {
    std::vector<int32_t> tokens(sequences.size());
    engine_.forward(sequences, [&](const float* rows, int64_t offset, int64_t n) {
      const std::vector<int32_t> best = engine_.reader().argmax(rows, n, engine_.vocab());
      std::copy(best.begin(), best.end(), tokens.begin() + offset);
    });
    for (size_t i = 0; i < tokens.size(); ++i) accept(active_[first + i], tokens[i]);
    const auto done = std::stable_partition(active_.begin(), active_.end(),
                                            [](const Active& a) { return a.slot >= 0; });
    active_.erase(done, active_.end());
  }

  void accept(Active& active, int32_t token) {
    if (token < 0) {
      throw Error(Exit::kGateFailed, "non_finite_logits",
                  "the engine returned NaN or infinite logits while generating an answer");
    }
    Generation& generation = out_[active.request];
    if (std::find(eos_.begin(), eos_.end(), token) != eos_.end()) return finish(active, "eos");
    active.next = token;
    generation.ids.push_back(token);
    generation.text += active.stops.append(active.decoder.push(token));
    if (active.stops.hit()) return finish(active, "stop");
    if (static_cast<int64_t>(generation.ids.size()) >= requests_[active.request].max_tokens) {
      finish(active, "length");
    }
  }

  void finish(Active& active, const char* end) {
    Generation& generation = out_[active.request];
    if (!active.stops.hit()) {
      generation.text += active.stops.append(active.decoder.finish());
      if (!active.stops.hit()) generation.text += active.stops.finish();
    }
    generation.end = end;
    free_.push_back(active.slot);
    active.slot = -1;
    ++finished_;
  }

  Engine& engine_;
  const Tokenizer& tokenizer_;
  std::span<const int32_t> eos_;
  std::span<const GenerationRequest> requests_;
  std::vector<Generation> out_;
  std::vector<Active> active_;
  std::vector<int32_t> free_;
  size_t started_ = 0;
  size_t finished_ = 0;
};

}  // namespace

std::vector<Generation> generate_all(Engine& engine, const Tokenizer& tokenizer,
                                     std::span<const int32_t> eos,
                                     std::span<const GenerationRequest> requests,
                                     const OnProgress& progress) {
  return Generator(engine, tokenizer, eos, requests).run(progress);
}

std::vector<int32_t> read_eos_ids(const std::string& checkpoint_dir) {
  for (const char* file : {"generation_config.json", "config.json"}) {
    const std::string path = checkpoint_dir + "/" + file;
    if (!std::filesystem::exists(path)) continue;
    const Json json = parse_json(quote_infinity(read_file(path, 1 << 20)), path);
    const Json* value = json.contains("eos_token_id") ? &json["eos_token_id"] : nullptr;
    for (const char* key : {"text_config", "llm_config"}) {
      if (value == nullptr && json.contains(key) && json[key].contains("eos_token_id")) {
        value = &json[key]["eos_token_id"];
      }
    }
    if (value == nullptr || value->is_null()) continue;
    std::vector<int32_t> ids;
    for (const Json& id : value->is_array() ? *value : Json::array({*value})) {
      if (!id.is_number_integer())
        throw UsageError("json_type", path + ": eos_token_id must be an integer");
      ids.push_back(id.get<int32_t>());
    }
    return ids;
  }
  return {};
}

}  // namespace cbench
