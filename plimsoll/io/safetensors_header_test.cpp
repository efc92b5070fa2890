#include "plimsoll/io/safetensors_header.h"

#include <gmock/gmock.h>

#include <cstring>
#include <random>

#include "plimsoll/io/error.h"

namespace plimsoll::io {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using testing::ThrowsMessage;

std::string file_of(const std::string& header, size_t data_bytes) {
  const uint64_t length = header.size();
  std::string file(8, '\0');
  std::memcpy(file.data(), &length, 8);
  return file + header + std::string(data_bytes, '\0');
}

SafetensorsHeader parse(const std::string& file) {
  return parse_safetensors_header(std::as_bytes(std::span(file)), "f");
}

std::string with_entry(const std::string& dtype, const std::string& shape, const std::string& offsets) {
  return R"({"x":{"dtype":)" + dtype + R"(,"shape":)" + shape + R"(,"data_offsets":)" + offsets + "}}";
}

struct Hostile {
  const char* what;
  std::string file;
  const char* expected;  // part of the error
};

std::vector<Hostile> hostile_files() {
  const auto entry = [](const char* dtype, const char* shape, const char* offsets, size_t data_bytes) {
    return file_of(with_entry(dtype, shape, offsets), data_bytes);
  };
  const auto pair = [](const char* first, const char* second, size_t data_bytes) {
    const std::string form = R"({"dtype":"U8","shape":[4],"data_offsets":)";
    return file_of(R"({"x":)" + form + first + R"(},"y":)" + form + second + "}}", data_bytes);
  };
  const std::string f32 = R"({"dtype":"F32","shape":[1],"data_offsets":[0,4]})";
  std::string huge = file_of("{}", 0), beyond = file_of("{}", 0), largest = file_of("{}", 0);
  huge[4] = 1;
  beyond[0] = 3;
  std::fill_n(largest.begin(), 8, '\xff');
  return {
      {"empty file", "", "expected at least 8 bytes, got 0"},
      {"cut length", "\1\0\0", "expected at least 8 bytes"},
      {"header over the limit", huge, "expected a safetensors file, whose header has at most 100000000 bytes"},
      {"header of 2^64 - 1", largest, "expected a safetensors file, whose header has at most 100000000 bytes"},
      {"header beyond the file", beyond, "expected a header of 3 bytes, got 2"},
      {"no JSON", file_of("hello", 0), "expected valid JSON"},
      {"empty header", file_of("", 0), "expected valid JSON"},
      {"cut JSON", file_of(R"({"x":{"dtype":"F32")", 4), "expected valid JSON"},
      {"a number beyond a double", file_of(R"({"x":1e400})", 0), "expected numbers that a double holds"},
      {"text after the JSON", file_of("{} x", 0), "expected valid JSON"},
      {"invalid UTF-8", file_of("{\"\xff\":1}", 0), "expected valid JSON"},
      {"zero bytes as padding", file_of(std::string("{}\0\0", 4), 0), "expected valid JSON"},
      {"deep nesting", file_of(std::string(50'000, '['), 0), "nested at most 32 deep"},
      {"header is an array", file_of("[]", 0), "expected a JSON object"},
      {"header is a number", file_of("1", 0), "expected a JSON object"},
      {"duplicate tensor", file_of(R"({"x":)" + f32 + R"(,"x":)" + f32 + "}", 4), "expected each key once, got \"x\""},
      {"duplicate by escape", file_of(R"({"x":)" + f32 + R"(,"\u0078":)" + f32 + "}", 4), "expected each key once"},
      {"duplicate member", file_of(R"({"x":{"dtype":"F32","dtype":"F32","shape":[],"data_offsets":[0,4]}})", 4),
       "expected each key once, got \"dtype\""},
      {"duplicate metadata", file_of(R"({"__metadata__":{},"__metadata__":{}})", 0), "expected each key once"},
      {"metadata no object", file_of(R"({"__metadata__":1})", 0), "expected __metadata__ to be an object"},
      {"metadata no string", file_of(R"({"__metadata__":{"a":1}})", 0), "expected strings in __metadata__"},
      {"tensor no object", file_of(R"({"x":[]})", 0), "tensor 'x': expected an object"},
      {"no dtype", file_of(R"({"x":{"shape":[1],"data_offsets":[0,4]}})", 4), "expected a member 'dtype'"},
      {"no shape", file_of(R"({"x":{"dtype":"F32","data_offsets":[0,4]}})", 4), "expected a member 'shape'"},
      {"no offsets", file_of(R"({"x":{"dtype":"F32","shape":[1]}})", 4), "expected a member 'data_offsets'"},
      {"dtype no string", entry("1", "[1]", "[0,4]", 4), "expected a string as dtype"},
      {"unknown dtype", entry("\"F31\"", "[1]", "[0,4]", 4), "unknown dtype \"F31\""},
      {"shape no array", entry("\"F32\"", "1", "[0,4]", 4), "expected shape to be an array of non-negative integers"},
      {"negative size", entry("\"F32\"", "[-1]", "[0,4]", 4), "expected shape to be an array of non-negative integers"},
      {"fraction as size", entry("\"F32\"", "[1.0]", "[0,4]", 4), "expected shape to be an array"},
      {"text as size", entry("\"F32\"", "[\"1\"]", "[0,4]", 4), "expected shape to be an array"},
      {"size over 64 bits", entry("\"F32\"", "[18446744073709551616]", "[0,4]", 4), "expected shape to be an array"},
      {"size over 63 bits", entry("\"U8\"", "[9223372036854775808]", "[0,4]", 4), "is too large"},
      {"overflowing product", entry("\"U8\"", "[4294967296,4294967296]", "[0,0]", 0), "is too large"},
      {"product that wraps to 4", entry("\"F32\"", "[4611686018427387905]", "[0,4]", 4), "is too large"},
      {"overflow hidden by zero", entry("\"U8\"", "[4294967296,4294967296,0]", "[0,0]", 0), "is too large"},
      {"65 dimensions",
       entry("\"U8\"",
             ("[1" +
              [] {
                std::string s;
                for (int i = 0; i < 64; ++i) s += ",1";
                return s;
              }() +
              "]")
                 .c_str(),
             "[0,1]", 1),
       "expected at most 64 dimensions, got 65"},
      {"one offset", entry("\"F32\"", "[1]", "[0]", 4), "expected data_offsets [begin, end]"},
      {"three offsets", entry("\"F32\"", "[1]", "[0,4,4]", 4), "expected data_offsets [begin, end]"},
      {"reversed offsets", entry("\"F32\"", "[1]", "[4,0]", 4), "expected data_offsets [begin, end]"},
      {"negative offset", entry("\"F32\"", "[1]", "[-4,0]", 4), "expected data_offsets to be an array"},
      {"fewer bytes than the shape", entry("\"F32\"", "[2]", "[0,4]", 4), "expected 8 bytes for F32 [2], got 4"},
      {"more bytes than the shape", entry("\"F32\"", "[1]", "[0,8]", 8), "expected 4 bytes for F32 [1], got 8"},
      {"range outside the file", entry("\"F32\"", "[2]", "[0,8]", 4), "expected its bytes to end at 4"},
      {"range far outside", entry("\"U8\"", "[4]", "[18446744073709551611,18446744073709551615]", 4), "end at 4"},
      {"overlap", pair("[0,4]", "[2,6]", 6), "tensor 'y': expected its bytes to start at 4, got 2 (overlap)"},
      {"the same bytes twice", pair("[0,4]", "[0,4]", 4), "(overlap)"},
      {"hole", pair("[0,4]", "[5,9]", 9), "tensor 'y': expected its bytes to start at 4, got 5 (hole)"},
      {"hole at the start", entry("\"F32\"", "[1]", "[4,8]", 8), "(hole)"},
      {"bytes after the last", entry("\"F32\"", "[1]", "[0,4]", 5), "expected 4 bytes of data, got 5"},
      {"data without tensors", file_of("{}", 1), "expected 0 bytes of data, got 1"},
  };
}

TEST(SafetensorsHeader, HostileFilesAreRefusedWithOneClearLine) {
  for (const Hostile& hostile : hostile_files()) {
    EXPECT_THAT(
        [&] { parse(hostile.file); },
        ThrowsMessage<Error>(AllOf(HasSubstr(hostile.expected), testing::StartsWith("f: "), Not(HasSubstr("\n")))))
        << hostile.what;
  }
}

TEST(SafetensorsHeader, RoundTripsThroughText) {
  const std::vector<SafetensorsEntry> entries = {
      {.name = "a \"quoted\" name", .dtype = at::kBFloat16, .shape = {2, 3}, .begin = 0, .end = 12},
      {.name = "empty", .dtype = at::kFloat, .shape = {0, 5}, .begin = 12, .end = 12},
      {.name = "\u00fc", .dtype = at::kByte, .shape = {}, .begin = 12, .end = 13}};
  const std::string text = format_safetensors_header(entries, {{"key", "value"}});
  EXPECT_EQ(text.size() % 8, 0u);
  const SafetensorsHeader header = parse(text + std::string(13, '\0'));
  EXPECT_EQ(header.data_offset, text.size());
  EXPECT_EQ(header.metadata.at("key"), "value");
  ASSERT_EQ(header.entries.size(), entries.size());
  for (size_t i = 0; i < entries.size(); ++i) {
    EXPECT_EQ(header.entries[i].name, entries[i].name);
    EXPECT_EQ(header.entries[i].dtype, entries[i].dtype);
    EXPECT_EQ(header.entries[i].shape, entries[i].shape);
    EXPECT_EQ(header.entries[i].begin, entries[i].begin);
  }
}

// Whatever the bytes: either Error, or a header whose ranges cover the file's data exactly.
TEST(SafetensorsHeader, RandomCorruptionNeverPassesUnchecked) {
  const std::string good =
      format_safetensors_header({{.name = "x", .dtype = at::kFloat, .shape = {2, 3}, .begin = 0, .end = 24},
                                 {.name = "y", .dtype = at::kHalf, .shape = {8}, .begin = 24, .end = 40}},
                                {{"k", "v"}}) +
      std::string(40, '\0');
  std::mt19937_64 random(1);
  int accepted = 0;
  for (int trial = 0; trial < 20'000; ++trial) {
    std::string bad = good;
    for (uint64_t edits = 1 + random() % 4; edits > 0; --edits) {
      const size_t at = random() % bad.size();
      switch (random() % 4) {
        case 0:
          bad[at] = static_cast<char>(random());
          break;
        case 1:
          bad[at] = "0123456789[]{},:\"-e. "[random() % 21];
          break;
        case 2:
          bad.erase(at, random() % 8);
          break;
        case 3:
          bad.insert(at, bad.substr(random() % bad.size(), random() % 8));
          break;
      }
      if (bad.empty()) break;
    }
    try {
      const SafetensorsHeader header = parse(bad);
      ++accepted;
      uint64_t covered = header.data_offset;
      for (const SafetensorsEntry& entry : header.entries) covered += entry.end - entry.begin;
      EXPECT_EQ(covered, bad.size());
    } catch (const Error&) {
    }
  }
  EXPECT_GT(accepted, 0);  // corrupt data or names are valid headers
}

}  // namespace
}  // namespace plimsoll::io
