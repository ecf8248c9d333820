#include "eval/decode_speed.h"

#include <algorithm>
#include <stdexcept>

#include "eval/statistics.h"
#include "util/clock.h"
#include "util/error.h"

namespace cbench {
namespace {

/// A token may differ from the teacher-forced argmax where two logits nearly tie, since one-row and
/// many-row products round differently. More than this is another model.
constexpr double kMinAgreement = 0.9;
constexpr double kMaxMeanGap = 0.05;
/// Tokens of the one request to a model that streams: a token takes seconds, each the same.
constexpr int64_t kStreamedTokens = 16;

struct Request {
  double prefill_seconds = 0;
  double seconds = 0;  // first to last token
  std::vector<int32_t> ids;
};

Request run_request(Engine& engine, const std::vector<int32_t>& prompt, int64_t new_tokens,
                    EnergyMeter& energy) {
  Request request;
  const double started = boot_seconds();
  const EngineSequence sequence{0, 0, prompt, static_cast<int32_t>(prompt.size() - 1)};
  int32_t first = -1;
  engine.forward({&sequence, 1}, [&](const float* rows, int64_t, int64_t n) {
    first = engine.reader().argmax(rows, n, engine.vocab())[0];
  });
  if (first < 0) {
    throw Error(Exit::kGateFailed, "non_finite_logits", "NaN or infinite logits before decoding");
  }
  request.prefill_seconds = boot_seconds() - started;
  energy.start();  // reading the counter takes milliseconds that belong to neither window
  const double first_token = boot_seconds();
  request.ids.push_back(first);
  double last_token = first_token;
  engine.generate(0, first, static_cast<int32_t>(prompt.size()), new_tokens - 1, [&](int32_t id) {
    last_token = boot_seconds();
    request.ids.push_back(id);
  });
  request.seconds = last_token - first_token;
  energy.stop(new_tokens - 1);
  return request;
}

/// Feeds prompt and answer teacher-forced and adds up how far each token is from the argmax.
void judge_tokens(Engine& engine, const std::vector<int32_t>& prompt,
                  const std::vector<int32_t>& answer, DecodeSpeed& result) {
  std::vector<int32_t> ids = prompt;
  ids.insert(ids.end(), answer.begin(), answer.end() - 1);
  const EngineSequence sequence{0, 0, ids, static_cast<int32_t>(prompt.size() - 1)};
  std::vector<RowScore> scores(answer.size());
  engine.forward({&sequence, 1}, [&](const float* rows, int64_t first, int64_t n) {
    const auto offset = static_cast<size_t>(first);
    const auto count = static_cast<size_t>(n);
    engine.reader().score(rows, n, engine.vocab(), std::span(answer).subspan(offset, count),
                          std::span(scores).subspan(offset, count));
  });
  for (size_t i = 0; i < answer.size(); ++i) {
    result.agreement += scores[i].argmax == answer[i] ? 1 : 0;
    result.mean_gap += scores[i].target_gap;
    ++result.tokens;
  }
}

}  // namespace

int64_t decode_prompts(const DecodeProtocol& protocol) {
  return protocol.warmup_requests + protocol.rounds * protocol.requests_per_round;
}

DecodeSpeed measure_decode_speed(Engine& engine, const DecodeProtocol& asked,
                                 std::span<const std::vector<int32_t>> prompts) {
  DecodeProtocol protocol = asked;
  if (engine.streams()) {
    protocol.warmup_requests = 0;
    protocol.rounds = protocol.requests_per_round = 1;
    protocol.new_tokens = std::min(protocol.new_tokens, kStreamedTokens);
  }
  if (static_cast<int64_t>(prompts.size()) < decode_prompts(protocol)) {
    throw std::logic_error("decode speed: too few prompts");
  }
  DecodeSpeed result;
  size_t next = 0;
  EnergyMeter warm_up(nullptr), energy(engine.gpu());
  for (int64_t i = 0; i < protocol.warmup_requests; ++i) {
    run_request(engine, prompts[next++], protocol.new_tokens, warm_up);
  }
  std::vector<double> prefill;
  std::vector<std::pair<size_t, std::vector<int32_t>>> answers;
  for (int64_t round = 0; round < protocol.rounds; ++round) {
    double sum = 0;
    for (int64_t i = 0; i < protocol.requests_per_round; ++i) {
      Request request = run_request(engine, prompts[next], protocol.new_tokens, energy);
      sum += request.seconds;
      prefill.push_back(request.prefill_seconds);
      answers.emplace_back(next++, std::move(request.ids));
    }
    result.round_seconds.push_back(sum / static_cast<double>(protocol.requests_per_round));
  }
  for (const auto& [prompt, ids] : answers) judge_tokens(engine, prompts[prompt], ids, result);
  const auto judged = static_cast<double>(result.tokens);
  result.agreement /= judged;
  result.mean_gap /= judged;
  result.tokens_plausible = result.agreement >= kMinAgreement && result.mean_gap <= kMaxMeanGap;
  result.tokens_per_second =
      static_cast<double>(protocol.new_tokens - 1) / median(result.round_seconds);
  result.prefill_seconds = median(prefill);
  result.energy = energy.use();
  return result;
}

}  // namespace cbench
