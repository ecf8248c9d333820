// A backend whose every model op is timed, for the bench's profile. Timing synchronizes the device
// around each op, so that totals are larger than those of an untimed run.
#pragma once

#include <chrono>
#include <map>
#include <string>
#include <utility>

#include "runtime/bench.h"

namespace cbench {

class TimedOps final : public Ops {
 public:
  explicit TimedOps(Ops& inner) : inner_(inner) {}

  /// Times since the last call.
  std::map<std::string, OpTime> take() { return std::exchange(times_, {}); }
  void enable(bool on) { enabled_ = on; }

  std::string device_name() const override { return inner_.device_name(); }
  bool is_cuda() const override { return inner_.is_cuda(); }
  DeviceFacts facts() const override { return inner_.facts(); }
  int64_t activation_bytes() const override { return inner_.activation_bytes(); }
  Arena& arena() override { return inner_.arena(); }
  void* stream() override { return inner_.stream(); }
  void copy_in(void* to, const void* host, size_t bytes) override {
    inner_.copy_in(to, host, bytes);
  }
  void copy_out(void* host, const void* from, size_t bytes) override {
    inner_.copy_out(host, from, bytes);
  }
  void zero(void* to, size_t bytes) override { inner_.zero(to, bytes); }
  void synchronize() override { inner_.synchronize(); }
  void warm_up() override { inner_.warm_up(); }
  void reserve(const Capacity& limits, const OpsPlan& plan) override {
    inner_.reserve(limits, plan);
  }
  std::unique_ptr<Slots> make_slots(size_t count, size_t bytes) override {
    return inner_.make_slots(count, bytes);
  }
  void trim() override { inner_.trim(); }
  void read_ids(std::span<int32_t> ids) override { inner_.read_ids(ids); }
  std::unique_ptr<Replay> record(std::function<void()> work) override {
    return inner_.record(std::move(work));
  }

  void upload(const Batch& batch) override {
    timed("upload", [&] { inner_.upload(batch); });
  }
  void advance_greedy(const float* logits, int64_t vocab) override {
    timed("advance_greedy", [&] { inner_.advance_greedy(logits, vocab); });
  }
  void embed(const Linear& table, float scale, void* y) override {
    timed("embed", [&] { inner_.embed(table, scale, y); });
  }
  void rms_norm(const void* x, const Norm& norm, int64_t rows, int64_t width, void* y) override {
    timed("rms_norm", [&] { inner_.rms_norm(x, norm, rows, width, y); });
  }
  void project(const void* x, const Norm* norm, int64_t rows, const Projection& w,
               void* y) override {
    timed("project", [&] { inner_.project(x, norm, rows, w, y); });
  }
  void project_add(const void* x, int64_t rows, const Linear& w, void* residual) override {
    timed("project_add", [&] { inner_.project_add(x, rows, w, residual); });
  }
  void gate_up(const void* x, const Norm* norm, int64_t rows, const Projection& w,
               Activation activation, void* y) override {
    timed("gate_up", [&] { inner_.gate_up(x, norm, rows, w, activation, y); });
  }
  void route(const RouterSpec& spec, const void* x, int64_t rows, int64_t width,
             const Routing& routing) override {
    timed("route", [&] { inner_.route(spec, x, rows, width, routing); });
  }
  void experts(const ExpertsSpec& spec, const Routing& routing, const void* x, int64_t rows,
               void* y) override {
    timed("experts", [&] { inner_.experts(spec, routing, x, rows, y); });
  }
  void add_normed(const void* y, const Norm* norm, int64_t rows, int64_t width, float scale,
                  void* residual) override {
    timed("add_normed", [&] { inner_.add_normed(y, norm, rows, width, scale, residual); });
  }
  void add_gated(const void* y, const void* x, const float* gate, int64_t rows, int64_t width,
                 void* residual) override {
    timed("add_gated", [&] { inner_.add_gated(y, x, gate, rows, width, residual); });
  }
  void attention(const AttentionSpec& spec, const KvCache& cache, const void* qkv,
                 void* y) override {
    timed("attention", [&] { inner_.attention(spec, cache, qkv, y); });
  }
  void delta_net(const DeltaNetSpec& spec, const DeltaNetState& state, const void* in,
                 void* y) override {
    timed("delta_net", [&] { inner_.delta_net(spec, state, in, y); });
  }
  void mamba2(const Mamba2Spec& spec, const Mamba2State& state, const void* in, void* y) override {
    timed("mamba2", [&] { inner_.mamba2(spec, state, in, y); });
  }
  void gather_rows(const void* x, std::span<const int32_t> rows, int64_t width, void* y) override {
    timed("gather_rows", [&] { inner_.gather_rows(x, rows, width, y); });
  }
  void add_bias(void* y, int64_t rows, int64_t width, const float* bias) override {
    timed("add_bias", [&] { inner_.add_bias(y, rows, width, bias); });
  }
  void lm_head(const void* x, const Norm& norm, int64_t rows, const Linear& w, float softcap,
               float* logits) override {
    timed("lm_head", [&] { inner_.lm_head(x, norm, rows, w, softcap, logits); });
  }

 private:
  template <typename Work>
  void timed(const char* name, Work work) {
    if (!enabled_) return work();
    inner_.synchronize();
    const auto begin = std::chrono::steady_clock::now();
    work();
    inner_.synchronize();
    OpTime& time = times_[name];
    time.seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    ++time.calls;
  }

  Ops& inner_;
  std::map<std::string, OpTime> times_;
  bool enabled_ = false;
};

}  // namespace cbench
