// Weights straight from a checkpoint.
#include "runtime/checkpoint_source.h"

#include <bit>
#include <cmath>
#include <cstring>

#include "package/expert_tensors.h"
#include "util/error.h"
#include "util/text.h"

namespace cbench {
namespace {

std::string shape_text(std::span<const int64_t> shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) {
    text += (i ? ", " : "") + std::to_string(shape[i]);
  }
  return text + "]";
}

float half_to_float(uint16_t bits) {
  const int exponent = (bits >> 10) & 31, mantissa = bits & 1023;
  const float sign = bits & 0x8000 ? -1.0f : 1.0f;
  if (exponent == 31) return mantissa ? NAN : sign * INFINITY;
  if (exponent == 0) return sign * std::ldexp(static_cast<float>(mantissa), -24);
  return sign * std::ldexp(static_cast<float>(1024 + mantissa), exponent - 25);
}

template <typename Stored, typename Convert>
void convert_all(const Tensor& tensor, std::vector<float>& out, Convert convert) {
  for (size_t i = 0; i < out.size(); ++i) {
    Stored value;
    std::memcpy(&value, tensor.bytes.data() + i * sizeof(Stored), sizeof(Stored));
    out[i] = convert(value);
  }
}

bool is_float(DType dtype) {
  return dtype == DType::kBF16 || dtype == DType::kF16 || dtype == DType::kF32 ||
         dtype == DType::kF64;
}

}  // namespace

uint16_t to_bf16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  if (std::isnan(value)) return static_cast<uint16_t>((bits >> 16) | 0x40);
  return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

std::vector<float> tensor_floats(const Tensor& tensor) {
  std::vector<float> out(static_cast<size_t>(tensor.elements()));
  switch (tensor.dtype) {
    case DType::kBF16:
      convert_all<uint16_t>(tensor, out, [](uint16_t bits) {
        return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
      });
      break;
    case DType::kF16:
      convert_all<uint16_t>(tensor, out, half_to_float);
      break;
    case DType::kF32:
      convert_all<float>(tensor, out, [](float value) { return value; });
      break;
    case DType::kF64:
      convert_all<double>(tensor, out, [](double value) { return static_cast<float>(value); });
      break;
    default:
      throw UsageError("dtype", "tensor " + printable(tensor.name) + " has type " +
                                    dtype_name(tensor.dtype) + "; needed: BF16, F16, F32 or F64");
  }
  return out;
}

const Tensor& CheckpointSource::require(const std::string& name,
                                        std::span<const int64_t> shape) const {
  const Tensor* tensor = store_.find(name);
  if (!tensor) throw UsageError("missing_tensor", "the checkpoint has no tensor " + name);
  if (!std::equal(shape.begin(), shape.end(), tensor->shape.begin(), tensor->shape.end())) {
    throw UsageError("shape", "tensor " + name + " has shape " + shape_text(tensor->shape) +
                                  "; the config asks for " + shape_text(shape));
  }
  if (!is_float(tensor->dtype)) {
    throw UsageError("dtype", "tensor " + name + " has type " + dtype_name(tensor->dtype) +
                                  "; needed: BF16, F16, F32 or F64");
  }
  return *tensor;
}

CheckpointSource::Placed CheckpointSource::place(std::span<const Tensor* const> tensors,
                                                 Category category, const std::string& name) {
  const bool plain = tensors.front()->dtype == DType::kBF16;
  const bool widened = !plain && !ops_.is_cuda();
  const size_t element = widened ? sizeof(float) : sizeof(uint16_t);
  size_t elements = 0;
  for (const Tensor* tensor : tensors) {
    if ((tensor->dtype == DType::kBF16) != plain) {
      throw UsageError("dtype", "tensor " + tensor->name + " and " + tensors.front()->name +
                                    " must both be BF16, or neither");
    }
    elements += static_cast<size_t>(tensor->elements());
  }
  auto* data = static_cast<char*>(memory_->allocate(elements * element, category, name));
  const Placed placed = {widened ? nullptr : data,
                         widened ? reinterpret_cast<const float*>(data) : nullptr};
  for (const Tensor* tensor : tensors) {
    const size_t size = static_cast<size_t>(tensor->elements()) * element;
    if (plain) {
      memory_->write(data, tensor->bytes.data(), size);
    } else {
      const std::vector<float> values = tensor_floats(*tensor);
      std::vector<uint16_t> rounded;
      if (!widened) {
        rounded.resize(values.size());
        for (size_t i = 0; i < values.size(); ++i) rounded[i] = to_bf16(values[i]);
      }
      memory_->write(data, widened ? static_cast<const void*>(values.data()) : rounded.data(),
                     size);
    }
    data += size;
  }
  return placed;
}

Linear CheckpointSource::stack(std::span<const Tensor* const> tensors, int64_t cols,
                               Category category) {
  const Placed placed = place(tensors, category, tensors.front()->name);
  Linear linear;
  for (const Tensor* tensor : tensors) linear.rows += tensor->shape[0];
  linear.cols = cols;
  linear.bf16 = placed.bf16;
  linear.f32 = placed.f32;
  return linear;
}

ExpertLinear CheckpointSource::experts(const std::string& name, std::span<const int64_t> kept,
                                       int64_t rows, int64_t cols) {
  const auto count = static_cast<int64_t>(kept.size());
  std::vector<const Tensor*> tensors;
  if (store_.find(name)) {
    const int64_t shape[] = {count, rows, cols};
    tensors.push_back(&require(name, shape));
  } else {
    const std::vector<std::string> parts = expert_parts(name);
    const std::string first = expert_tensor(name, kept.front(), parts.front());
    if (!store_.find(first)) {
      throw UsageError("missing_tensor",
                       "the checkpoint has no tensor " + name + " and no " + first);
    }
    const int64_t shape[] = {rows / static_cast<int64_t>(parts.size()), cols};
    for (const int64_t expert : kept) {
      for (const std::string& part : parts) {
        tensors.push_back(&require(expert_tensor(name, expert, part), shape));
      }
    }
  }
  const Placed placed = place(tensors, Category::kWeights, name);
  return {count, rows, cols, placed.bf16, placed.f32, nullptr};
}

Linear CheckpointSource::matrix(const std::string& name, int64_t rows, int64_t cols,
                                Category category) {
  const int64_t shape[] = {rows, cols};
  const Tensor* tensor = &require(name, shape);
  return stack({&tensor, 1}, cols, category);
}

Projection CheckpointSource::projection(std::span<const std::string> names,
                                        std::span<const int64_t> rows, int64_t cols) {
  std::vector<const Tensor*> tensors;
  for (size_t i = 0; i < names.size(); ++i) {
    const int64_t shape[] = {rows[i], cols};
    tensors.push_back(&require(names[i], shape));
  }
  Projection projection;
  for (size_t begin = 0; begin < tensors.size();) {
    size_t end = begin + 1;
    const bool plain = tensors[begin]->dtype == DType::kBF16;
    while (end < tensors.size() && (tensors[end]->dtype == DType::kBF16) == plain) ++end;
    projection.parts.push_back(
        stack(std::span(tensors).subspan(begin, end - begin), cols, Category::kWeights));
    begin = end;
  }
  return projection;
}

const float* CheckpointSource::vector(const std::string& name, std::span<const int64_t> shape,
                                      float add) {
  std::vector<float> values = host_vector(name, shape);
  for (float& value : values) value += add;
  auto* data = ops_.arena().allocate<float>(values.size(), Category::kMetadata, name);
  ops_.copy_in(data, values.data(), values.size() * sizeof(float));
  return data;
}

std::vector<float> CheckpointSource::host_vector(const std::string& name,
                                                 std::span<const int64_t> shape) {
  return tensor_floats(require(name, shape));
}

}  // namespace cbench
