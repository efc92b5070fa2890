#include "plimsoll/tokenize/sentencepiece/protobuf.h"

#include <limits>

namespace plimsoll::tokenize {

bool ProtobufReader::read_varint(uint64_t& value) {
  constexpr size_t kMaxBytes = 10;  // seven bits each
  value = 0;
  for (size_t i = 0; i < kMaxBytes && i < rest_.size(); ++i) {
    const auto byte = static_cast<unsigned char>(rest_[i]);
    value |= static_cast<uint64_t>(byte & 0x7f) << (7 * i);
    if ((byte & 0x80) == 0) {
      rest_.remove_prefix(i + 1);
      return true;
    }
  }
  return false;
}

bool ProtobufReader::read_fixed(size_t size, uint64_t& value) {
  if (rest_.size() < size) return false;
  value = 0;
  for (size_t i = size; i-- > 0;) value = value << 8 | static_cast<unsigned char>(rest_[i]);
  rest_.remove_prefix(size);
  return true;
}

bool ProtobufReader::read(ProtobufField& field) {
  uint64_t tag = 0;
  if (!read_varint(tag) || tag > std::numeric_limits<uint32_t>::max() || tag >> 3 == 0) return false;
  field = {.number = static_cast<uint32_t>(tag >> 3), .wire = static_cast<ProtobufField::Wire>(tag & 7)};
  switch (field.wire) {
    case ProtobufField::Wire::kVarint:
      return read_varint(field.value);
    case ProtobufField::Wire::kFixed64:
      return read_fixed(sizeof(uint64_t), field.value);
    case ProtobufField::Wire::kFixed32:
      return read_fixed(sizeof(uint32_t), field.value);
    case ProtobufField::Wire::kBytes: {
      uint64_t size = 0;
      if (!read_varint(size) || size > rest_.size()) return false;
      field.bytes = rest_.substr(0, size);
      rest_.remove_prefix(size);
      return true;
    }
  }
  return false;
}

bool ProtobufReader::next(ProtobufField& field) {
  if (rest_.empty() || malformed_) return false;
  const std::string_view begin = rest_;
  malformed_ = !read(field);
  if (!malformed_) field.whole = begin.substr(0, begin.size() - rest_.size());
  return !malformed_;
}

}  // namespace plimsoll::tokenize
