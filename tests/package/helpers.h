// Small makers of files and directories for the package tests.
#pragma once

#include <cstdint>
#include <cstring>
#include <fstream>
#include <string>
#include <string_view>

#include <gtest/gtest.h>

#include "package/safetensors.h"
#include "util/error.h"
#include "util/file.h"

namespace cbench::testing {

inline void put(const std::string& path, std::string_view bytes) {
  const size_t slash = path.rfind('/');
  make_directories(path.substr(0, slash));
  std::ofstream out(path, std::ios::binary);
  out.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  ASSERT_TRUE(out.good()) << path;
}

/// A safetensors image of any header, right or wrong.
inline std::string image(std::string_view header, std::string_view data) {
  std::string out(8, '\0');
  const uint64_t size = header.size();
  std::memcpy(out.data(), &size, 8);
  out += header;
  out += data;
  return out;
}

/// A valid file with one tensor of four bytes per name.
inline std::string tiny_tensors(const std::vector<std::string>& names) {
  std::string header = "{";
  for (size_t i = 0; i < names.size(); ++i) {
    header += (i == 0 ? "\"" : ",\"") + names[i] +
              R"(":{"dtype":"F32","shape":[1],"data_offsets":[)" + std::to_string(4 * i) + "," +
              std::to_string(4 * i + 4) + "]}";
  }
  return image(header + "}", std::string(4 * names.size(), 'x'));
}

/// The code of the error that `action` throws, "" when it throws none.
template <typename Action>
std::string code_of(Action action) {
  try {
    action();
  } catch (const Error& error) {
    EXPECT_FALSE(std::string(error.what()).empty());
    return error.code();
  }
  return "";
}

}  // namespace cbench::testing
