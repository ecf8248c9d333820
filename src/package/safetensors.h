// Safetensors: a strict, memory-mapped reader, the sharded index, and a writer.
// Rules and refusal codes follow the format as published by huggingface/safetensors, read strictly:
// whatever two readers could understand differently is refused (docs/package.md lists the codes).
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "util/file.h"

namespace cbench {

class PackageTree;

enum class DType : uint8_t {
  kBool,
  kF4,
  kF6E2M3,
  kF6E3M2,
  kU8,
  kI8,
  kF8E5M2,
  kF8E4M3,
  kF8E8M0,
  kF8E4M3Fnuz,
  kF8E5M2Fnuz,
  kI16,
  kU16,
  kF16,
  kBF16,
  kI32,
  kU32,
  kF32,
  kC64,
  kF64,
  kI64,
  kU64,
};

/// The name in the file, "BF16".
const char* dtype_name(DType dtype);
/// Bits per element: 4, 6, 8, 16, 32 or 64.
int dtype_bits(DType dtype);
/// The inverse of dtype_name; nothing for a name the format does not know.
std::optional<DType> dtype_from_name(std::string_view name);

struct Tensor {
  std::string name;
  DType dtype = DType::kU8;
  std::vector<int64_t> shape;  ///< row major; rank 0 is a scalar, zero dimensions are legal
  std::string_view bytes;      ///< into the owner's map; little endian, alignment not guaranteed

  int64_t elements() const;  ///< product of the shape; 1 for rank 0
};

/// How many values of an F16, BF16, F32 or F64 tensor are NaN or infinite; 0 for other types. The
/// format allows them, so they are reported and not refused.
uint64_t count_non_finite(const Tensor& tensor);

/// Pairs of `__metadata__`, sorted by key, keys unique.
using TensorMetadata = std::vector<std::pair<std::string, std::string>>;

struct ParsedTensors {
  std::vector<Tensor> tensors;  ///< in the order of their data; `bytes` point into the input
  TensorMetadata metadata;
};

/// Largest header that is read, as in the reference implementation.
inline constexpr uint64_t kMaxSafetensorsHeader = 100'000'000;

/// Reads a whole file image. `source` names it in errors. Throws UsageError with one of the codes
/// header_too_small, header_too_large, header_past_eof, header_start, header_padding, utf8, json,
/// json_depth, duplicate_key, metadata, entry_fields, dtype, shape, offsets, offset_order,
/// overflow, misaligned_subbyte, size_mismatch, overlap, hole, trailing_bytes, truncated.
ParsedTensors parse_safetensors(std::string_view file, std::string_view source);

/// One mapped file. Its tensors are valid as long as it lives. The file must not shrink meanwhile:
/// measure frozen copies, never a directory that somebody else still writes to.
class TensorFile {
 public:
  /// Throws UsageError (see parse_safetensors) or EnvironmentError when it cannot be opened.
  explicit TensorFile(const std::string& path);
  TensorFile(const Fd& fd, std::string_view source);  ///< an already opened regular file

  const std::vector<Tensor>& tensors() const { return parsed_.tensors; }
  const TensorMetadata& metadata() const { return parsed_.metadata; }

 private:
  MappedFile map_;
  ParsedTensors parsed_;
};

/// All tensors of a checkpoint or a package, whatever number of files they are in.
class TensorStore {
 public:
  /// model.safetensors.index.json with its shards, else model.safetensors. A trusted directory:
  /// links are followed (the Hub's cache consists of them). Index codes: index_type, index_path,
  /// index_missing_shard, index_tensor_absent, index_tensor_unlisted; no_weights without any file.
  static TensorStore open_checkpoint(const std::string& dir);
  /// The same rules inside an untrusted tree.
  static TensorStore open_checkpoint(const PackageTree& tree);
  /// Every weights*.safetensors in the root of an untrusted tree; names must be unique across files
  /// (code duplicate_tensor). No file at all is an empty store.
  static TensorStore open_package(const PackageTree& tree);

  const Tensor* find(std::string_view name) const;
  const std::vector<Tensor>& tensors() const { return tensors_; }  ///< sorted by name
  const std::vector<std::string>& files() const { return files_; }
  /// Oddities that are reported and not refused, such as a wrong total_size in the index.
  const std::vector<std::string>& warnings() const { return warnings_; }

 private:
  template <typename Open>
  static TensorStore open_index(std::string_view index, const std::string& source, Open open);
  void add_file(const std::string& name, MappedFile map);
  void sort_unique();

  std::vector<MappedFile> maps_;
  std::vector<Tensor> tensors_;
  std::vector<std::string> files_;
  std::vector<std::string> warnings_;
};

/// Writes a file that every reader takes: sorted by falling element size, then name; data starts at
/// a multiple of 8; replaced atomically and durably. Throws UsageError ("size_mismatch",
/// "duplicate_tensor", "utf8") before anything is written, EnvironmentError ("disk_full", "io").
void write_safetensors(const std::string& path, std::span<const Tensor> tensors,
                       const std::map<std::string, std::string>& metadata = {});

}  // namespace cbench
