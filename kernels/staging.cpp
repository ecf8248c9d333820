// Pinned staging lanes.
#include "staging.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <exception>
#include <thread>
#include <vector>

#include <cuda_runtime_api.h>
#include <sys/mman.h>
#include <unistd.h>

#include "check.h"

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22  // Linux 5.14
#endif

namespace cbench::cuda {
namespace {

constexpr unsigned kMostLanes = 8;  // the bus is full before that

/// Maps the pages of a file at once instead of fault by fault; a kernel without it changes nothing.
void populate(const char* data, size_t bytes) {
  static const auto page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto first = reinterpret_cast<uintptr_t>(data) / page * page;
  const auto end = (reinterpret_cast<uintptr_t>(data) + bytes + page - 1) / page * page;
  ::madvise(reinterpret_cast<void*>(first), end - first, MADV_POPULATE_READ);
}

}  // namespace

struct Staging::Lane {
  cudaStream_t stream = nullptr;
  std::array<void*, 2> buffer{};
  std::array<cudaEvent_t, 2> free{};
  size_t next = 0;

  void open() {
    CBENCH_CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    for (size_t i = 0; i < 2; ++i) {
      CBENCH_CUDA(cudaMallocHost(&buffer[i], kChunk));
      CBENCH_CUDA(cudaEventCreateWithFlags(&free[i], cudaEventDisableTiming));
    }
  }
  ~Lane() {
    for (size_t i = 0; i < 2; ++i) {
      if (free[i]) cudaEventDestroy(free[i]);
      if (buffer[i]) cudaFreeHost(buffer[i]);
    }
    if (stream) cudaStreamDestroy(stream);
  }
  void send(char* to, const char* from, size_t bytes) {
    const size_t i = next++ % 2;
    CBENCH_CUDA(cudaEventSynchronize(free[i]));  // of the copy before last; passes at first
    populate(from, bytes);
    std::memcpy(buffer[i], from, bytes);
    CBENCH_CUDA(cudaMemcpyAsync(to, buffer[i], bytes, cudaMemcpyHostToDevice, stream));
    CBENCH_CUDA(cudaEventRecord(free[i], stream));
  }
};

Staging::Staging(int device)
    : device_(device),
      lanes_(std::clamp(std::thread::hardware_concurrency() / 2, 1u, kMostLanes)),
      lane_(std::make_unique<Lane[]>(lanes_)) {
  for (size_t i = 0; i < lanes_; ++i) lane_[i].open();
}

Staging::~Staging() = default;

void Staging::copy(void* to, const void* host, size_t bytes) {
  std::atomic<size_t> taken{0};
  std::vector<std::exception_ptr> failures(lanes_);
  const auto work = [&](size_t mine) {
    try {
      CBENCH_CUDA(cudaSetDevice(device_));
      for (size_t at; (at = taken.fetch_add(kChunk)) < bytes;) {
        lane_[mine].send(static_cast<char*>(to) + at, static_cast<const char*>(host) + at,
                         std::min(kChunk, bytes - at));
      }
      CBENCH_CUDA(cudaStreamSynchronize(lane_[mine].stream));
    } catch (...) {
      failures[mine] = std::current_exception();
    }
  };
  std::vector<std::thread> threads;
  for (size_t i = 1; i < lanes_; ++i) threads.emplace_back(work, i);
  work(0);
  for (std::thread& thread : threads) thread.join();
  for (const std::exception_ptr& failure : failures) {
    if (failure) std::rethrow_exception(failure);
  }
}

}  // namespace cbench::cuda
