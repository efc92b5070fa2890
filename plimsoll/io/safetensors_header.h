// The header of a safetensors file: 8 bytes of length N (little endian), N bytes of JSON
//   {"__metadata__": {"key": "value"}, "name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [begin, end]}, ...}
// then the data, which the tensors cover exactly, without holes or overlaps.
// Source: the format description of https://github.com/huggingface/safetensors.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

namespace plimsoll::io {

inline constexpr uint64_t kMaxHeaderBytes = 100'000'000;

struct SafetensorsEntry {
  std::string name;
  at::ScalarType dtype = at::kFloat;
  std::vector<int64_t> shape;
  uint64_t begin = 0, end = 0;  // bytes from the start of the data
};

using SafetensorsMetadata = std::map<std::string, std::string>;

struct SafetensorsHeader {
  std::vector<SafetensorsEntry> entries;  // in the order of their data
  SafetensorsMetadata metadata;
  uint64_t data_offset = 0;  // bytes from the start of the file
};

// Checks everything that the file claims against its size. `name` opens the error.
SafetensorsHeader parse_safetensors_header(std::span<const std::byte> file, const std::string& name);

// The length and the JSON, padded with spaces so that the data starts at a multiple of 8.
std::string format_safetensors_header(const std::vector<SafetensorsEntry>& entries,
                                      const SafetensorsMetadata& metadata);

// "F32" for at::kFloat. Throws Error for a dtype that the format lacks.
std::string_view safetensors_dtype(at::ScalarType dtype);

}  // namespace plimsoll::io
