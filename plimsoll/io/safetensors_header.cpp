#include "plimsoll/io/safetensors_header.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <tuple>

#include "plimsoll/io/error.h"
#include "plimsoll/io/json.h"

namespace plimsoll::io {
namespace {

using nlohmann::json;

constexpr std::string_view kMetadata = "__metadata__";
constexpr size_t kLengthBytes = 8;
constexpr size_t kMaxDimensions = 64;  // of torch's loops over tensors

struct Dtype {
  std::string_view name;
  at::ScalarType type;
};
constexpr std::array<Dtype, 16> kDtypes = {{{"F64", at::kDouble},
                                            {"F32", at::kFloat},
                                            {"F16", at::kHalf},
                                            {"BF16", at::kBFloat16},
                                            {"F8_E4M3", at::kFloat8_e4m3fn},
                                            {"F8_E5M2", at::kFloat8_e5m2},
                                            {"F8_E8M0", at::kFloat8_e8m0fnu},
                                            {"I64", at::kLong},
                                            {"I32", at::kInt},
                                            {"I16", at::kShort},
                                            {"I8", at::kChar},
                                            {"U64", at::kUInt64},
                                            {"U32", at::kUInt32},
                                            {"U16", at::kUInt16},
                                            {"U8", at::kByte},
                                            {"BOOL", at::kBool}}};

std::optional<at::ScalarType> parse_dtype(std::string_view name) {
  for (const Dtype& dtype : kDtypes) {
    if (dtype.name == name) return dtype.type;
  }
  return std::nullopt;
}

// Bytes of a tensor of this shape, or nothing if they (or the product of the non-zero sizes) do not fit in 63 bits.
std::optional<uint64_t> byte_count(const SafetensorsEntry& entry) {
  auto bytes = static_cast<int64_t>(c10::elementSize(entry.dtype));
  bool empty = false;
  for (const int64_t size : entry.shape) {
    empty |= size == 0;
    if (size != 0 && __builtin_mul_overflow(bytes, size, &bytes)) return std::nullopt;
  }
  return empty ? 0 : static_cast<uint64_t>(bytes);
}

// Reads one file's header; every error opens with the file's name and the tensor at fault.
class HeaderParser {
 public:
  explicit HeaderParser(const std::string& name) : name_(name) {}

  SafetensorsHeader parse(std::span<const std::byte> file) {
    SafetensorsHeader header;
    const std::string_view text = text_of(file);
    header.data_offset = kLengthBytes + text.size();
    const json root = parse_json(text, name_);
    if (!root.is_object()) fail("{}: expected a JSON object as header, got {}", name_, root.type_name());
    for (const auto& [key, value] : root.items()) {
      if (key == kMetadata) {
        header.metadata = metadata_of(value);
      } else {
        header.entries.push_back(entry_of(key, value));
      }
    }
    std::sort(header.entries.begin(), header.entries.end(), [](const auto& a, const auto& b) {
      return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name);
    });
    check_coverage(header.entries, file.size() - header.data_offset);
    return header;
  }

 private:
  std::string_view text_of(std::span<const std::byte> file) const {
    if (file.size() < kLengthBytes) fail("{}: expected at least 8 bytes, got {} (truncated?)", name_, file.size());
    uint64_t length = 0;
    std::memcpy(&length, file.data(), kLengthBytes);
    if (length > kMaxHeaderBytes) {
      fail("{}: expected a safetensors file, whose header has at most {} bytes, got a length of {}", name_,
           kMaxHeaderBytes, length);
    }
    if (length > file.size() - kLengthBytes) {
      fail("{}: expected a header of {} bytes, got {} (truncated?)", name_, length, file.size() - kLengthBytes);
    }
    return {reinterpret_cast<const char*>(file.data()) + kLengthBytes, static_cast<size_t>(length)};
  }

  SafetensorsMetadata metadata_of(const json& value) const {
    if (!value.is_object()) fail("{}: expected __metadata__ to be an object, got {}", name_, value.type_name());
    SafetensorsMetadata metadata;
    for (const auto& [key, text] : value.items()) {
      if (!text.is_string()) fail("{}: expected strings in __metadata__, got {}", name_, text.type_name());
      metadata.emplace(key, text.get<std::string>());
    }
    return metadata;
  }

  SafetensorsEntry entry_of(const std::string& tensor, const json& value) const {
    if (!value.is_object()) fail("{}: tensor '{}': expected an object, got {}", name_, tensor, value.type_name());
    SafetensorsEntry entry{.name = tensor, .shape = {}};
    const json& dtype = member(tensor, value, "dtype");
    if (!dtype.is_string()) fail("{}: tensor '{}': expected a string as dtype", name_, tensor);
    const auto type = parse_dtype(dtype.get_ref<const std::string&>());
    if (!type) fail("{}: tensor '{}': unknown dtype {}", name_, tensor, dtype.dump());
    entry.dtype = *type;
    for (const uint64_t size : numbers(tensor, value, "shape")) {
      if (size > static_cast<uint64_t>(INT64_MAX)) fail("{}: tensor '{}': size {} is too large", name_, tensor, size);
      entry.shape.push_back(static_cast<int64_t>(size));
    }
    if (entry.shape.size() > kMaxDimensions) {
      fail("{}: tensor '{}': expected at most {} dimensions, got {}", name_, tensor, kMaxDimensions,
           entry.shape.size());
    }
    const std::vector<uint64_t> range = numbers(tensor, value, "data_offsets");
    if (range.size() != 2 || range[0] > range[1]) {
      fail("{}: tensor '{}': expected data_offsets [begin, end], got {}", name_, tensor, value["data_offsets"].dump());
    }
    entry.begin = range[0];
    entry.end = range[1];
    const auto bytes = byte_count(entry);
    if (!bytes) fail("{}: tensor '{}': shape {} is too large", name_, tensor, entry.shape);
    if (*bytes != entry.end - entry.begin) {
      fail("{}: tensor '{}': expected {} bytes for {} {}, got {}", name_, tensor, *bytes,
           safetensors_dtype(entry.dtype), entry.shape, entry.end - entry.begin);
    }
    return entry;
  }

  const json& member(const std::string& tensor, const json& value, const char* key) const {
    const auto found = value.find(key);
    if (found == value.end()) fail("{}: tensor '{}': expected a member '{}'", name_, tensor, key);
    return *found;
  }

  std::vector<uint64_t> numbers(const std::string& tensor, const json& value, const char* key) const {
    const json& list = member(tensor, value, key);
    const auto is_unsigned = [](const json& number) { return number.is_number_unsigned(); };
    if (!list.is_array() || !std::all_of(list.begin(), list.end(), is_unsigned)) {
      fail("{}: tensor '{}': expected {} to be an array of non-negative integers", name_, tensor, key);
    }
    return list.get<std::vector<uint64_t>>();
  }

  void check_coverage(const std::vector<SafetensorsEntry>& entries, uint64_t data_bytes) const {
    uint64_t covered = 0;
    for (const SafetensorsEntry& entry : entries) {
      if (entry.end > data_bytes) {
        fail("{}: tensor '{}': expected its bytes to end at {} or before, got {} (truncated?)", name_, entry.name,
             data_bytes, entry.end);
      }
      if (entry.begin != covered) {
        fail("{}: tensor '{}': expected its bytes to start at {}, got {} ({})", name_, entry.name, covered, entry.begin,
             entry.begin < covered ? "overlap" : "hole");
      }
      covered = entry.end;
    }
    if (covered != data_bytes) fail("{}: expected {} bytes of data, got {}", name_, covered, data_bytes);
  }

  const std::string& name_;
};

}  // namespace

std::string_view safetensors_dtype(at::ScalarType dtype) {
  for (const Dtype& known : kDtypes) {
    if (known.type == dtype) return known.name;
  }
  fail("safetensors: no name for dtype {}", c10::toString(dtype));
}

SafetensorsHeader parse_safetensors_header(std::span<const std::byte> file, const std::string& name) {
  return HeaderParser(name).parse(file);
}

std::string format_safetensors_header(const std::vector<SafetensorsEntry>& entries,
                                      const SafetensorsMetadata& metadata) {
  nlohmann::ordered_json root = nlohmann::ordered_json::object();
  if (!metadata.empty()) root[std::string(kMetadata)] = metadata;
  for (const SafetensorsEntry& entry : entries) {
    if (entry.name == kMetadata) fail("safetensors: expected a tensor's name, got the reserved '{}'", kMetadata);
    root[entry.name] = {
        {"dtype", safetensors_dtype(entry.dtype)}, {"shape", entry.shape}, {"data_offsets", {entry.begin, entry.end}}};
  }
  std::string text;
  try {
    text = root.dump();
  } catch (const nlohmann::json::type_error&) {
    fail("safetensors: expected names and metadata in UTF-8");
  }
  text.append((8 - text.size() % 8) % 8, ' ');
  if (text.size() > kMaxHeaderBytes) {
    fail("safetensors: expected a header of at most {} bytes, got {}", kMaxHeaderBytes, text.size());
  }
  const uint64_t length = text.size();
  std::string result(kLengthBytes, '\0');
  std::memcpy(result.data(), &length, kLengthBytes);
  return result + text;
}

}  // namespace plimsoll::io
