// A plugin that serves one BF16 matrix and misbehaves on a GPU in the way its format's parameter
// "mode" names: it keeps memory behind the host's back, or its kernels fail. Hostile on purpose.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include <cuda.h>
#include <cuda_runtime.h>
#include <dlfcn.h>

#include "cbench/submission.h"

namespace {

constexpr size_t kHoard = size_t{256} << 20;

const cb_host* host = nullptr;
std::string mode;
void* volatile keep = nullptr;

#if defined(HOARD_ARRAY)
__device__ unsigned char hoarded_array[kHoard];
#endif

struct Matrix {
  int64_t rows, cols;
  const uint16_t* weights;
};

int fail(const std::string& why) {
  host->log(host->ctx, CB_LOG_ERROR, why.c_str());
  return CB_ERROR;
}

__global__ void copy_rows(const uint16_t* from, uint16_t* to, int64_t count) {
  const int64_t i = blockIdx.x * int64_t{256} + threadIdx.x;
  if (i < count) to[i] = from[i];
}
__global__ void touch(unsigned char* data, size_t bytes) {
  const size_t i = (blockIdx.x * size_t{256} + threadIdx.x) * 4096;
  if (i < bytes) data[i] = 1;
}
__global__ void write_nowhere() { *reinterpret_cast<volatile int*>(16) = 1; }
__global__ void never_end(volatile uint16_t* to) {
  while (to != nullptr) to[0] = static_cast<uint16_t>(to[0] + 1);
}

bool mem_create() {
  void* driver = dlopen("libcuda.so.1", RTLD_NOW);
  const auto create =
      driver ? reinterpret_cast<decltype(&cuMemCreate)>(dlsym(driver, "cuMemCreate")) : nullptr;
  CUmemAllocationProp p{};
  p.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  p.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  CUmemGenericAllocationHandle handle = 0;
  return create && create(&handle, kHoard, &p, 0) == CUDA_SUCCESS;
}

/// Takes what the mode is about; false with a CUDA error behind it.
bool hoard() {
  void* data = nullptr;
  if (mode == "cuda_malloc") {
    if (cudaMalloc(&data, kHoard) != cudaSuccess) return false;
  } else if (mode == "mem_create") {
    return mem_create();
  } else if (mode == "pinned") {
    if (cudaMallocHost(&data, kHoard) != cudaSuccess) return false;
    std::memset(data, 1, kHoard);
  } else if (mode == "host_copy") {
    data = std::malloc(kHoard);
    std::memset(data, 1, kHoard);
  } else if (mode == "managed") {
    if (cudaMallocManaged(&data, kHoard) != cudaSuccess) return false;
    touch<<<kHoard / 4096 / 256, 256>>>(static_cast<unsigned char*>(data), kHoard);
    if (cudaDeviceSynchronize() != cudaSuccess) return false;
  } else if (mode == "bf16_copy") {  // declared, as it should be
    data = host->alloc(host->ctx, kHoard, "a BF16 copy");
    if (!data) return false;
#if defined(HOARD_ARRAY)
  } else if (mode == "device_array") {
    if (cudaGetSymbolAddress(&data, hoarded_array) != cudaSuccess) return false;
    touch<<<kHoard / 4096 / 256, 256>>>(static_cast<unsigned char*>(data), kHoard);
    if (cudaDeviceSynchronize() != cudaSuccess) return false;
#endif
  }
  keep = data;
  return true;
}

/// Where host memory of the process shows, for the test's log.
void log_status() {
  FILE* file = std::fopen("/proc/self/status", "r");
  char line[256];
  while (file && std::fgets(line, sizeof line, file)) {
    if (!std::strncmp(line, "Rss", 3) || !std::strncmp(line, "VmPin", 5) ||
        !std::strncmp(line, "VmLck", 5)) {
      std::fputs(line, stderr);
    }
  }
  if (file) std::fclose(file);
}

int open_plugin(const cb_host* the_host, void** self) {
  host = the_host;
  *self = nullptr;
  return CB_OK;
}
void close_plugin(void*) {}

int load(void*, const cb_matrix* matrix, void** m) {
  cb_tensor tensor;
  if (host->find(host->ctx, matrix->name, &tensor) != CB_OK) return fail("no such tensor");
  auto* weights = static_cast<uint16_t*>(host->alloc(host->ctx, tensor.bytes, matrix->name));
  if (!weights || host->read(host->ctx, &tensor, 0, tensor.bytes, weights) != CB_OK) {
    return fail("cannot read the tensor");
  }
  const char* at = std::strstr(matrix->params, "\"mode\"");
  at = at ? std::strchr(at + 6, '"') : nullptr;
  if (at) mode.assign(at + 1, std::strcspn(at + 1, "\""));
  if (!keep && !hoard()) return fail(mode + ": " + cudaGetErrorString(cudaGetLastError()));
  if (mode == "pinned" || mode == "plain" || mode == "managed") log_status();
  *m = new Matrix{matrix->rows, matrix->cols, weights};
  return CB_OK;
}

int dequantize(void* handle, int64_t, int64_t row, int64_t rows, void* out, cb_stream stream) {
  const auto& m = *static_cast<const Matrix*>(handle);
  const int64_t count = rows * m.cols;
  const auto s = static_cast<cudaStream_t>(stream);
  if (mode == "illegal") write_nowhere<<<1, 1, 0, s>>>();
  if (mode == "hang") never_end<<<1, 1, 0, s>>>(static_cast<uint16_t*>(out));
  copy_rows<<<static_cast<unsigned>((count + 255) / 256), 256, 0, s>>>(
      m.weights + row * m.cols, static_cast<uint16_t*>(out), count);
  const cudaError_t error = cudaGetLastError();
  return error == cudaSuccess ? CB_OK : fail(cudaGetErrorString(error));
}

const cb_plugin kTable = {CB_ABI_VERSION, sizeof(cb_plugin), open_plugin, close_plugin,
                          load,           dequantize,        nullptr,     nullptr,
                          nullptr,        nullptr,           nullptr};

}  // namespace

extern "C" const cb_plugin* cbench_plugin(uint32_t) { return &kTable; }
