#include "plimsoll/io/safetensors_writer.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <gmock/gmock.h>

#include "plimsoll/io/error_testing.h"
#include "plimsoll/io/safetensors.h"
#include "plimsoll/io/testing.h"

namespace plimsoll::io {
namespace {

using testing::HasSubstr;

class SafetensorsInTurn : public testing::Test {
 protected:
  static TensorPlan plan_of(const std::string& name, const at::Tensor& tensor) {
    return {name, tensor.scalar_type(), tensor.sizes().vec()};
  }

  const TensorMap tensors_ = {{"bytes", at::arange(5, at::kByte)},
                              {"empty", at::empty({0, 3}, at::kHalf)},
                              {"matrix", at::arange(12, at::kFloat).reshape({3, 4}).t()},
                              {"one", at::full({}, 2.5, at::kBFloat16)}};
  TemporaryDirectory files_;
};

TEST_F(SafetensorsInTurn, AreTheFileThatIsWrittenAtOnce) {
  save_safetensors(files_ / "once", tensors_, {{"format", "pt"}});
  std::vector<TensorPlan> plans;
  for (const auto& [name, tensor] : tensors_) plans.push_back(plan_of(name, tensor));
  SafetensorsWriter writer(files_ / "turn", plans, {{"format", "pt"}});
  for (const char* name : {"one", "bytes", "matrix", "empty"}) writer.write(name, tensors_.at(name));
  EXPECT_FALSE(std::filesystem::exists(files_ / "turn"));
  writer.commit();
  EXPECT_EQ(read_plainly(files_ / "turn"), read_plainly(files_ / "once"));
}

TEST_F(SafetensorsInTurn, AreNoFileUntilEachIsWritten) {
  {
    SafetensorsWriter writer(files_ / "file", {plan_of("bytes", tensors_.at("bytes"))}, {});
    EXPECT_THAT(error_of([&] { writer.commit(); }), HasSubstr("tensor 'bytes': expected that it is written"));
  }
  EXPECT_THAT(names_in(files_.path()), testing::IsEmpty());
}

TEST_F(SafetensorsInTurn, HaveTheShapeAndDtypeThatWerePlanned) {
  SafetensorsWriter writer(files_ / "file", {plan_of("bytes", tensors_.at("bytes"))}, {});
  EXPECT_THAT(error_of([&] { writer.write("bytes", at::arange(6, at::kByte)); }), HasSubstr("expected a dense CPU"));
  EXPECT_THAT(error_of([&] { writer.write("bytes", at::arange(5, at::kChar)); }), HasSubstr("expected a dense CPU"));
  EXPECT_THAT(error_of([&] { writer.write("other", tensors_.at("bytes")); }), HasSubstr("tensor 'other'"));
  writer.write("bytes", tensors_.at("bytes"));
  EXPECT_THAT(error_of([&] { writer.write("bytes", tensors_.at("bytes")); }), HasSubstr("expected one that is to be"));
}

}  // namespace
}  // namespace plimsoll::io
