#include "plimsoll/io/safetensors.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <gmock/gmock.h>

#include <cstring>

#include "plimsoll/io/error.h"
#include "plimsoll/io/testing.h"

namespace plimsoll::io {
namespace {

using testing::ElementsAre;

std::string bytes_of(const at::Tensor& tensor) {
  return {static_cast<const char*>(tensor.const_data_ptr()), tensor.nbytes()};
}

TEST(Safetensors, EveryDtypeComesBackBitByBit) {
  const TemporaryDirectory directory;
  TensorMap tensors;
  for (const at::ScalarType dtype :
       {at::kDouble, at::kFloat, at::kHalf, at::kBFloat16, at::kFloat8_e4m3fn, at::kFloat8_e5m2, at::kFloat8_e8m0fnu,
        at::kLong, at::kInt, at::kShort, at::kChar, at::kUInt64, at::kUInt32, at::kUInt16, at::kByte, at::kBool}) {
    at::Tensor tensor = at::empty({3, 5}, dtype);
    auto* bytes = static_cast<unsigned char*>(tensor.mutable_data_ptr());
    for (size_t i = 0; i < tensor.nbytes(); ++i) {
      bytes[i] = static_cast<unsigned char>(dtype == at::kBool ? i % 2 : 37 * i + 1);
    }
    tensors.emplace(c10::toString(dtype), tensor);
  }
  save_safetensors(directory / "a", tensors, {{"maker", "test"}});

  const SafetensorsFile file(directory / "a");
  EXPECT_EQ(file.entries().size(), tensors.size());
  EXPECT_EQ(file.metadata().at("maker"), "test");
  for (const auto& [name, tensor] : tensors) {
    const at::Tensor loaded = file.tensor(name);
    EXPECT_EQ(loaded.scalar_type(), tensor.scalar_type());
    EXPECT_EQ(loaded.sizes(), tensor.sizes());
    EXPECT_EQ(bytes_of(loaded), bytes_of(tensor)) << name;
  }
}

TEST(Safetensors, ScalarsEmptyTensorsAndStridedViewsAreKept) {
  const TemporaryDirectory directory;
  const at::Tensor grid = at::arange(12, at::kFloat).view({3, 4});
  save_safetensors(directory / "a", {{"empty", at::empty({0, 7})}, {"scalar", at::full({}, 3.5)}, {"view", grid.t()}});
  const TensorMap loaded = SafetensorsFile(directory / "a").tensors();
  EXPECT_THAT(loaded.at("empty").sizes(), ElementsAre(0, 7));
  EXPECT_EQ(loaded.at("scalar").dim(), 0);
  EXPECT_EQ(loaded.at("scalar").item<float>(), 3.5f);
  EXPECT_TRUE(at::equal(loaded.at("view"), grid.t()));
}

TEST(Safetensors, FileWithoutTensorsIsValid) {
  const TemporaryDirectory directory;
  save_safetensors(directory / "a", {});
  EXPECT_TRUE(SafetensorsFile(directory / "a").tensors().empty());
}

TEST(Safetensors, TensorOutlivesTheFileObject) {
  const TemporaryDirectory directory;
  save_safetensors(directory / "a", {{"x", at::arange(1000, at::kFloat)}});
  const at::Tensor x = SafetensorsFile(directory / "a").tensor("x");
  std::filesystem::remove(directory / "a");
  EXPECT_TRUE(at::equal(x, at::arange(1000, at::kFloat)));
}

TEST(Safetensors, WritingToATensorLeavesTheFileAlone) {
  const TemporaryDirectory directory;
  save_safetensors(directory / "a", {{"x", at::full({10}, 1.0)}});
  SafetensorsFile(directory / "a").tensor("x").fill_(2);
  EXPECT_EQ(SafetensorsFile(directory / "a").tensor("x").sum().item<float>(), 10.0f);
}

TEST(Safetensors, UnalignedTensorsAreReadable) {
  const TemporaryDirectory directory;
  const std::string header =
      R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"b":{"dtype":"F32","shape":[1],"data_offsets":[1,5]}})";
  std::string file(8, '\0');
  file[0] = static_cast<char>(header.size());
  file += header + '\7';
  const float value = 1.5f;
  file.append(reinterpret_cast<const char*>(&value), 4);
  write_plainly(directory / "a", file);
  EXPECT_EQ(SafetensorsFile(directory / "a").tensor("b").item<float>(), 1.5f);
}

TEST(Safetensors, BoolBytesOtherThanZeroReadAsTrue) {
  const TemporaryDirectory directory;
  save_safetensors(directory / "a", {{"x", at::full({3}, 5, at::kByte)}});
  std::string file = read_plainly(directory / "a");
  const size_t dtype = file.find("\"U8\"");
  ASSERT_NE(dtype, std::string::npos);
  const size_t padding = file.find("  ", dtype);
  ASSERT_NE(padding, std::string::npos);
  file.erase(padding, 2);
  file.replace(dtype, 4, "\"BOOL\"");
  write_plainly(directory / "a", file);
  EXPECT_EQ(bytes_of(SafetensorsFile(directory / "a").tensor("x")), "\1\1\1");
}

TEST(Safetensors, UnwritableTensorsAreRefused) {
  const TemporaryDirectory directory;
  EXPECT_THROW(save_safetensors(directory / "a", {{"x", at::Tensor()}}), Error);
  EXPECT_THROW(save_safetensors(directory / "a", {{"x", at::empty({1}, at::kComplexFloat)}}), Error);
  EXPECT_THROW(save_safetensors(directory / "a", {{"__metadata__", at::empty({1})}}), Error);
  EXPECT_THROW(save_safetensors(directory / "a", {{"\xff", at::empty({1})}}), Error);
  EXPECT_TRUE(std::filesystem::is_empty(directory.path()));
}

TEST(Safetensors, UnknownNameIsAnError) {
  const TemporaryDirectory directory;
  save_safetensors(directory / "a", {});
  EXPECT_THROW(SafetensorsFile(directory / "a").tensor("x"), Error);
}

}  // namespace
}  // namespace plimsoll::io
