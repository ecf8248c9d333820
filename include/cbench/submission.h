/* cbench submission ABI, version 1.
 *
 * A package brings its compressed matrices to the runtime through this C interface. The runtime
 * owns the graph (norms, rotary embedding, attention, recurrences, routing, caches, sampling); a
 * matrix is the plugin's business as soon as it is not stored as BF16. The plugin is a shared
 * object that exports one function:
 *
 *     const cb_plugin* cbench_plugin(uint32_t host_abi);
 *
 * It returns a table that lives as long as the process, or NULL if it cannot serve that ABI. With
 * only `load` and `dequantize` everything works: the runtime dequantizes panels of rows into
 * transient workspace and calls the GEMM library. `matmul`, `experts`, `transform` and `embed` are
 * optional and make decoding fast.
 *
 * Rules
 *  - A matrix W has `rows` outputs and `cols` inputs, row major; y = W x. Mixture-of-experts
 * weights have `experts` such matrices; elsewhere `experts` is 1.
 *  - All pointers handed to and expected from the plugin are device pointers on CUDA, host pointers
 *    on the CPU. Memory that stays must come from cb_host.alloc: it is counted as model storage.
 * What the process holds and nobody declared counts as model storage as well; pinned and managed
 * memory is refused.
 *  - Activations `x` and `y` have the type cb_host.activation: CB_F32 on the CPU, CB_BF16 on CUDA.
 *  - On CUDA every call enqueues its work on the given stream and returns; no synchronization, no
 *    allocation, no host read inside matmul, experts, transform, embed and dequantize: they are
 *    captured into a CUDA graph. On the CPU the stream is NULL and the call returns when done.
 *  - Calls arrive from one thread at a time. On the CPU the plugin may use OpenMP.
 *  - Results must be deterministic, and must not depend on earlier calls.
 *  - Return CB_OK, CB_UNSUPPORTED (the runtime falls back to dequantize), or CB_ERROR after a
 *    cb_host.log with the reason (the measurement ends with that message).
 */
#ifndef CBENCH_SUBMISSION_H
#define CBENCH_SUBMISSION_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define CB_ABI_VERSION 1u

enum { CB_OK = 0, CB_UNSUPPORTED = 1, CB_ERROR = 2 };

/* Element types, named as in safetensors. */
enum {
  CB_BOOL = 0,
  CB_U8 = 1,
  CB_I8 = 2,
  CB_I16 = 3,
  CB_U16 = 4,
  CB_F16 = 5,
  CB_BF16 = 6,
  CB_I32 = 7,
  CB_U32 = 8,
  CB_F32 = 9,
  CB_F64 = 10,
  CB_I64 = 11,
  CB_U64 = 12,
  CB_F8_E4M3 = 13,
  CB_F8_E5M2 = 14,
  CB_OTHER = 255 /* a safetensors type without a number here; read its bytes */
};

enum { CB_DEVICE_CPU = 0, CB_DEVICE_CUDA = 1 };
enum { CB_LOG_INFO = 0, CB_LOG_WARNING = 1, CB_LOG_ERROR = 2 };

typedef void* cb_stream; /* cudaStream_t, or NULL on the CPU */

/* A tensor stored in the package's weights*.safetensors. */
typedef struct cb_tensor {
  const char* name;
  int32_t dtype; /* CB_F32 ... */
  int32_t rank;  /* 0..8 */
  int64_t shape[8];
  uint64_t bytes;
  const void* handle; /* the host's; leave alone */
} cb_tensor;

/* One matrix that the manifest gives to the plugin. */
typedef struct cb_matrix {
  const char* name;   /* the checkpoint's tensor name, e.g. model.layers.0.mlp.up_proj.weight */
  int64_t rows, cols; /* outputs, inputs of one expert's matrix */
  int64_t experts;    /* 1 for a dense matrix */
  const char* params; /* the manifest's parameters of this matrix's format, as JSON text */
} cb_matrix;

/* Offered by the harness; valid until close(). It grows only at its end: check `size` before using
 * a field that a later version added. */
typedef struct cb_host {
  uint32_t abi, size;
  int32_t device;          /* CB_DEVICE_CPU or CB_DEVICE_CUDA */
  int32_t arch;            /* CUDA: 10 * major + minor compute capability; CPU: 0 */
  int32_t multiprocessors; /* CUDA: SM count (a packing may depend on it); CPU: threads to use */
  int32_t activation;      /* CB_F32 or CB_BF16: type of x and y */
  void* ctx;
  /* Resident memory, 256-byte aligned, zeroed, counted, living until close(). NULL when there is
   * none left. `what` names it in the storage report. Only during open() and load(). */
  void* (*alloc)(void* ctx, size_t bytes, const char* what);
  /* Finds a stored tensor. CB_OK, or CB_ERROR if the package has none of that name. */
  int (*find)(void* ctx, const char* tensor, cb_tensor* out);
  /* Copies bytes [offset, offset + n) of a stored tensor to device memory (host memory on the CPU).
   */
  int (*read)(void* ctx, const cb_tensor* tensor, uint64_t offset, uint64_t n, void* to);
  /* The same bytes to host memory, for small metadata, on any device. */
  int (*read_host)(void* ctx, const cb_tensor* tensor, uint64_t offset, uint64_t n, void* to);
  void (*log)(void* ctx, int level, const char* text);
} cb_host;

/* Returned by cbench_plugin(). Functions marked optional may be NULL. */
typedef struct cb_plugin {
  uint32_t abi, size; /* CB_ABI_VERSION, sizeof(cb_plugin) */

  /* Once per process. `self` is passed to load and close. */
  int (*open)(const cb_host* host, void** self);
  void (*close)(void* self);

  /* Prepares one matrix: reads its tensors, allocates, repacks. `m` is passed to the calls below.
   */
  int (*load)(void* self, const cb_matrix* matrix, void** m);

  /* Rows [row, row + rows) of expert `expert` as BF16, row major [rows, cols]. If `transform` is
   * given, these are the rows of the transformed weights. */
  int (*dequantize)(void* m, int64_t expert, int64_t row, int64_t rows, void* bf16_out,
                    cb_stream stream);

  /* Optional. Transient bytes that matmul or experts need for `tokens` tokens. */
  size_t (*workspace)(void* m, int64_t tokens);

  /* Optional. x_out = T x for each token, both [tokens, cols]: e.g. a rotation that the stored
   * weights already contain on their input side. Used before a GEMM on dequantized rows; matmul and
   * experts take the untransformed x. */
  int (*transform)(void* m, const void* x, int64_t tokens, void* x_out, cb_stream stream);

  /* Optional. y[t, :] = W x[t, :]; x [tokens, cols], y [tokens, rows] with y rows `y_stride`
   * elements apart. CB_UNSUPPORTED for token counts it does not serve. */
  int (*matmul)(void* m, const void* x, int64_t tokens, void* y, int64_t y_stride, void* workspace,
                cb_stream stream);

  /* Optional. For i < n: y[i, :] = W[expert[i]] x[row[i], :]; index arrays on the device. */
  int (*experts)(void* m, const void* x, const int32_t* expert, const int32_t* row, int64_t n,
                 void* y, void* workspace, cb_stream stream);

  /* Optional. y[i, :] = row ids[i] of W (an embedding table), y [n, cols]; ids on the device. */
  int (*embed)(void* m, const int32_t* ids, int64_t n, void* y, cb_stream stream);
} cb_plugin;

/* The one exported symbol. */
typedef const cb_plugin* (*cbench_plugin_function)(uint32_t host_abi);

#ifdef __cplusplus
}
#endif
#endif /* CBENCH_SUBMISSION_H */
