// The fields of a protobuf message as they lie in its bytes (protobuf.dev/programming-guides/encoding). sentencepiece
// links a protobuf of its own and shows nothing of it, and libtorch holds another one: a program that linked a third
// could not tell them apart.
#pragma once

#include <cstdint>
#include <string_view>

namespace plimsoll::tokenize {

struct ProtobufField {
  enum class Wire : uint8_t { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

  uint32_t number;  // at least 1
  Wire wire;
  uint64_t value = 0;           // of a varint or a number of fixed width
  std::string_view bytes = {};  // of a text, bytes or a message
  std::string_view whole = {};  // the field with its tag, as it lies in the message
};

// Reads one field after the other. Groups, which no message of ours has, are malformed.
class ProtobufReader {
 public:
  explicit ProtobufReader(std::string_view message) : rest_(message) {}

  // False at the end of the message, or where it is malformed.
  bool next(ProtobufField& field);
  bool malformed() const { return malformed_; }

 private:
  bool read(ProtobufField& field);
  bool read_varint(uint64_t& value);
  bool read_fixed(size_t size, uint64_t& value);

  std::string_view rest_;
  bool malformed_ = false;
};

}  // namespace plimsoll::tokenize
