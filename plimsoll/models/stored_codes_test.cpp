// The reader of matrices that are codes; python/tests/quantized_files_test.py has whole models.
#include "plimsoll/models/stored_codes.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>

#include "plimsoll/io/error_testing.h"
#include "plimsoll/io/testing.h"

namespace plimsoll::models {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;

at::Tensor codes_of(std::vector<int64_t> shape, at::ScalarType dtype) {
  int64_t count = 1;
  for (const int64_t size : shape) count *= size;
  return at::arange(count, at::kLong).remainder(100).to(at::kByte).view(shape).view(dtype);
}

class ACodedMatrix : public ::testing::Test {
 protected:
  void write(const io::TensorMap& tensors, const json& config) {
    io::save_safetensors(files_ / "model.safetensors", tensors);
    io::write_plainly(files_ / "config.json", json({{"quantization_config", config}}).dump());
  }

  ops::CodeSource read() const {
    const io::HuggingFaceDirectory directory(files_.path());
    return StoredCodes(directory).read("x.weight");
  }

  std::vector<std::string> expected(int64_t rows, int64_t cols) const {
    const io::HuggingFaceDirectory directory(files_.path());
    io::HuggingFaceDirectory::Shapes shapes;
    StoredCodes(directory).expect("x.weight", {rows, cols}, shapes);
    std::vector<std::string> names;
    for (const auto& [name, shape] : shapes) names.push_back(name);
    return names;
  }

  io::TemporaryDirectory files_;
};

json compressed(const char* format, const json& weights) {
  return {{"quant_method", "compressed-tensors"},
          {"format", format},
          {"config_groups", {{"group_0", {{"targets", {"Linear"}}, {"weights", weights}}}}}};
}

TEST_F(ACodedMatrix, HasScalesOf128By128ExpandedToRows) {
  write({{"x.weight", codes_of({130, 200}, at::kFloat8_e4m3fn)},
         {"x.weight_scale_inv", at::arange(1, 5, at::kFloat).view({2, 2}).to(at::kBFloat16)}},
        quantization_config_json(QuantizedFormat::kFp8Block, {}));
  const ops::CodeSource source = read();
  EXPECT_TRUE(at::equal(source.stored.codes, codes_of({130, 200}, at::kByte)));
  ASSERT_EQ(source.stored.scale.sizes(), (std::vector<int64_t>{130, 2}));
  EXPECT_TRUE(at::equal(source.stored.scale[127], at::arange(1, 3, at::kFloat)));
  EXPECT_TRUE(at::equal(source.stored.scale[128], at::arange(3, 5, at::kFloat)));
}

TEST_F(ACodedMatrix, HasTheScaleOfATensorInEachRow) {
  write({{"x.weight", codes_of({3, 5}, at::kFloat8_e4m3fn)}, {"x.weight_scale", at::full({}, 0.25)}},
        compressed("float-quantized", {{"num_bits", 8}, {"type", "float"}, {"strategy", "tensor"}}));
  EXPECT_TRUE(at::equal(read().stored.scale, at::full({3, 1}, 0.25)));
  EXPECT_THAT(expected(3, 5), ::testing::ElementsAre("x.weight", "x.weight_scale"));
}

TEST_F(ACodedMatrix, IsListedWithTheShapeOfItsValues) {
  write({{"x.weight_packed", codes_of({4, 16}, at::kByte)},
         {"x.weight_scale", codes_of({4, 2}, at::kFloat8_e4m3fn)},
         {"x.weight_global_scale", at::full({1}, 8.0)},
         {"y.weight", at::zeros({3, 5})},
         {"my_weight_packed", codes_of({4, 16}, at::kByte)}},
        quantization_config_json(QuantizedFormat::kNvfp4, {"y"}));
  const io::HuggingFaceDirectory directory(files_.path());
  EXPECT_THAT(StoredCodes(directory).shapes(),
              ::testing::ElementsAre(::testing::Pair("x.weight", std::vector<int64_t>{4, 32})));
}

TEST(StoredCodes, NameTheirScales) {
  for (const char* name : {"x.weight_scale", "x.weight_scale_inv", "x.weight_global_scale", "weight_scale"}) {
    EXPECT_TRUE(is_scale_of_codes(name)) << name;
  }
  for (const char* name : {"x.weight", "x.input_scale", "x.my_weight_scale", "x.weight_scale.bias"}) {
    EXPECT_FALSE(is_scale_of_codes(name)) << name;
  }
}

TEST_F(ACodedMatrix, DividesByTheFactorOfNvfp4) {
  write({{"x.weight_packed", codes_of({4, 16}, at::kByte)},
         {"x.weight_scale", codes_of({4, 2}, at::kFloat8_e4m3fn)},
         {"x.weight_global_scale", at::full({1}, 8.0)}},
        quantization_config_json(QuantizedFormat::kNvfp4, {"head"}));
  const ops::CodeSource source = read();
  EXPECT_EQ(source.stored.tensor_scale, 0.125f);
  EXPECT_TRUE(at::equal(source.stored.scale, codes_of({4, 2}, at::kByte)));
  EXPECT_THAT(expected(4, 32), ::testing::ElementsAre("x.weight_global_scale", "x.weight_packed", "x.weight_scale"));
  EXPECT_THAT(io::error_of([&] { expected(4, 40); }), HasSubstr("expected a multiple of 16 columns, got 40"));
}

TEST_F(ACodedMatrix, IsWholeBeforeItIsRead) {
  at::Tensor codes = codes_of({3, 5}, at::kByte).clone();
  codes[2][4] = 0xff;
  const json config = quantization_config_json(QuantizedFormat::kFp8, {"y", "x"});
  write({{"x.weight", codes.view(at::kFloat8_e4m3fn)}, {"x.weight_scale", at::full({3, 1}, 1.0)}}, config);
  EXPECT_THAT(io::error_of([&] { read(); }),
              AllOf(HasSubstr("model.safetensors: tensor 'x.weight'"), HasSubstr("got NaN")));
  EXPECT_THAT(io::error_of([&] { expected(3, 5); }), HasSubstr("as ignore of config.json names the module, got codes"));
  write({{"x.weight", codes_of({3, 5}, at::kFloat8_e4m3fn)}, {"x.weight_scale", at::full({3, 1}, -1.0)}}, config);
  EXPECT_THAT(io::error_of([&] { read(); }), HasSubstr("'x.weight_scale': expected scales that are finite"));
  write({{"x.weight", codes_of({0, 5}, at::kFloat8_e4m3fn)}, {"x.weight_scale", at::zeros({0, 1})}}, config);
  EXPECT_EQ(read().rows(), 0);
}

TEST_F(ACodedMatrix, IsNotReadWhereThereAreValuesAlone) {
  json config = quantization_config_json(QuantizedFormat::kNvfp4, {});
  const auto expect_codes = [&] { StoredCodes(io::HuggingFaceDirectory(files_.path())).expect_codes(); };
  write({{"x.weight", at::zeros({4, 32})}}, config);
  EXPECT_THAT(io::error_of(expect_codes),
              HasSubstr("expected codes of config.json's quantization_config, nvfp4-pack-quantized, got values alone"));
  config["quantization_status"] = "frozen";
  write({{"x.weight", at::zeros({4, 32})}}, config);
  EXPECT_EQ(io::error_of(expect_codes), "");
}

TEST(QuantizationConfig, HasOneFormatForAFileAndItsGroups) {
  json member = quantization_config_json(QuantizedFormat::kFp8, {});
  const auto layouts = [&] {
    return read_quantization_config({{"quantization_config", member}}, "config.json")->layouts.size();
  };
  for (const char* format : {"nvfp4-pack-quantized", "naive-quantized"}) {
    member["format"] = format;
    EXPECT_THAT(io::error_of(layouts),
                AllOf(HasSubstr("config_groups: group_0: format: expected " + std::string(format)),
                      HasSubstr("got 'float-quantized'")));
  }
  member["format"] = "mixed-precision";
  EXPECT_EQ(layouts(), 1);
  member.erase("format");
  EXPECT_EQ(layouts(), 1);
}

TEST(QuantizationConfig, IsReadAsItIsWritten) {
  for (const QuantizedFormat format :
       {QuantizedFormat::kFp8, QuantizedFormat::kFp8Block, QuantizedFormat::kNvfp4, QuantizedFormat::kMxfp4}) {
    const json config = {{"quantization_config", quantization_config_json(format, {"a.b", "re:c"})}};
    const auto read = read_quantization_config(config, "config.json");
    ASSERT_TRUE(read && read->layouts.size() == 1);
    EXPECT_EQ(read->layouts.front().kind, layout_of(format).kind);
    EXPECT_EQ(read->layouts.front().scales, layout_of(format).scales);
    EXPECT_EQ(read->layouts.front().scale, layout_of(format).scale);
    EXPECT_THAT(read->ignored, ::testing::ElementsAre("a.b"));
  }
  EXPECT_FALSE(read_quantization_config(json::object(), "config.json"));
}

}  // namespace
}  // namespace plimsoll::models
