// Exported CUDA virtual memory. The driver API is found at run time, so that a binary with this
// file starts on a machine without a driver.
#include "shared_buffer.h"

#include <string>
#include <utility>

#include <cuda.h>
#include <cuda_runtime_api.h>

#include "check.h"
#include "util/error.h"

namespace cbench::cuda {
namespace {

struct Driver {
  decltype(&cuMemCreate) create;
  decltype(&cuMemRelease) release;
  decltype(&cuMemExportToShareableHandle) export_handle;
  decltype(&cuMemImportFromShareableHandle) import_handle;
  decltype(&cuMemAddressReserve) reserve;
  decltype(&cuMemAddressFree) free_address;
  decltype(&cuMemMap) map;
  decltype(&cuMemUnmap) unmap;
  decltype(&cuMemSetAccess) set_access;
  decltype(&cuMemGetAllocationGranularity) granularity;
  decltype(&cuGetErrorName) error_name;

  Driver() {
    find(create, "cuMemCreate");
    find(release, "cuMemRelease");
    find(export_handle, "cuMemExportToShareableHandle");
    find(import_handle, "cuMemImportFromShareableHandle");
    find(reserve, "cuMemAddressReserve");
    find(free_address, "cuMemAddressFree");
    find(map, "cuMemMap");
    find(unmap, "cuMemUnmap");
    find(set_access, "cuMemSetAccess");
    find(granularity, "cuMemGetAllocationGranularity");
    find(error_name, "cuGetErrorName");
  }
  template <class F>
  static void find(F& function, const char* name) {
    void* address = nullptr;
    cudaDriverEntryPointQueryResult result{};
    CBENCH_CUDA(
        cudaGetDriverEntryPointByVersion(name, &address, 12000, cudaEnableDefault, &result));
    if (!address || result != cudaDriverEntryPointSuccess)
      throw EnvironmentError("cuda",
                             std::string("the driver lacks ") + name + "; install a newer one");
    function = reinterpret_cast<F>(address);
  }
  void check(CUresult result, const char* call) const {
    if (result == CUDA_SUCCESS) return;
    const char* name = nullptr;
    error_name(result, &name);
    throw EnvironmentError(
        result == CUDA_ERROR_OUT_OF_MEMORY ? "out_of_memory" : "cuda",
        std::string(call) + ": " + (name ? name : "unknown error") + " (shared logits buffer)");
  }
};
const Driver& driver() {
  static const Driver loaded;
  return loaded;
}

CUmemAllocationProp properties(int device) {
  CUmemAllocationProp p{};
  p.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  p.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  p.location.id = device;
  p.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  return p;
}
void start_context(int device) {
  CBENCH_CUDA(cudaSetDevice(device));
  CBENCH_CUDA(cudaFree(nullptr));
}

}  // namespace

SharedBuffer SharedBuffer::create(int device, size_t bytes, Access access) {
  start_context(device);
  const CUmemAllocationProp p = properties(device);
  size_t step = 0;
  driver().check(driver().granularity(&step, &p, CU_MEM_ALLOC_GRANULARITY_MINIMUM),
                 "cuMemGetAllocationGranularity");
  SharedBuffer buffer;
  buffer.bytes_ = (bytes + step - 1) / step * step;
  CUmemGenericAllocationHandle handle = 0;
  driver().check(driver().create(&handle, buffer.bytes_, &p, 0), "cuMemCreate");
  buffer.handle_ = handle;
  buffer.map(device, access);
  return buffer;
}

SharedBuffer SharedBuffer::import_descriptor(int device, int descriptor, size_t bytes,
                                             Access access) {
  start_context(device);
  SharedBuffer buffer;
  buffer.bytes_ = bytes;
  CUmemGenericAllocationHandle handle = 0;
  driver().check(
      driver().import_handle(&handle, reinterpret_cast<void*>(static_cast<intptr_t>(descriptor)),
                             CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
      "cuMemImportFromShareableHandle");
  buffer.handle_ = handle;
  buffer.map(device, access);
  return buffer;
}

void SharedBuffer::map(int device, Access access) {
  CUdeviceptr address = 0;
  driver().check(driver().reserve(&address, bytes_, 0, 0, 0), "cuMemAddressReserve");
  address_ = address;
  driver().check(driver().map(address_, bytes_, 0, handle_, 0), "cuMemMap");
  mapped_ = true;
  CUmemAccessDesc description{};
  description.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  description.location.id = device;
  description.flags = access == Access::kReadOnly ? CU_MEM_ACCESS_FLAGS_PROT_READ
                                                  : CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  driver().check(driver().set_access(address_, bytes_, &description, 1), "cuMemSetAccess");
}

int SharedBuffer::export_descriptor() const {
  int descriptor = -1;
  driver().check(
      driver().export_handle(&descriptor, handle_, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
      "cuMemExportToShareableHandle");
  return descriptor;
}

SharedBuffer::SharedBuffer(SharedBuffer&& other) noexcept { *this = std::move(other); }
SharedBuffer& SharedBuffer::operator=(SharedBuffer&& other) noexcept {
  std::swap(handle_, other.handle_);
  std::swap(address_, other.address_);
  std::swap(bytes_, other.bytes_);
  std::swap(mapped_, other.mapped_);
  return *this;
}
SharedBuffer::~SharedBuffer() { release(); }

void SharedBuffer::release() noexcept {
  if (mapped_) driver().unmap(address_, bytes_);
  if (address_) driver().free_address(address_, bytes_);
  if (handle_) driver().release(handle_);
}

}  // namespace cbench::cuda
