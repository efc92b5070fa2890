// Device code as a program without a card knows it.
#include "plimsoll/kernels/cuda/device_kernels.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <stdexcept>

#include "plimsoll/kernels/cuda/driver.h"

namespace plimsoll::kernels::cuda {
namespace {

struct Mixed {
  const void* pointer;
  bool flag;
};

TEST(PackedArguments, StandAtMultiplesOfTheirAlignment) {
  const float one = 1.5f;
  const Mixed two = {&one, true};
  const std::vector<uint8_t> bytes = packed_arguments(one, two, uint8_t{7}, int16_t{9});
  ASSERT_EQ(bytes.size(), 8u + sizeof(Mixed) + 1 + 1 + 2);
  float first = 0;
  Mixed second = {};
  std::memcpy(&first, bytes.data(), sizeof(first));
  std::memcpy(&second, bytes.data() + 8, sizeof(second));
  EXPECT_EQ(first, one);
  EXPECT_EQ(second.pointer, &one);
  EXPECT_TRUE(second.flag);
  EXPECT_EQ(bytes[8 + sizeof(Mixed)], 7);
  EXPECT_EQ(bytes[8 + sizeof(Mixed) + 2], 9);
}

TEST(DeviceKernels, HaveTheNamesOfTheirFormats) {
  EXPECT_EQ(kernel_name("amax", format::Format::kBf16), "amax_bf16");
  EXPECT_EQ(kernel_name("norm_forward", format::Format::kFp32, format::Format::kE4m3), "norm_forward_fp32_e4m3");
}

TEST(DeviceKernels, ALaunchWithoutACardIsOneClearError) {
  if (driver() != nullptr) GTEST_SKIP() << "there is a card";
  EXPECT_THROW(
      {
        try {
          launch({}, "amax_bf16", {1, 1}, 0);
        } catch (const std::runtime_error& error) {
          EXPECT_THAT(error.what(), testing::HasSubstr("expected a card and its driver"));
          throw;
        }
      },
      std::runtime_error);
  EXPECT_NO_THROW(launch({}, "amax_bf16", {0, 1}, 0)) << "nothing to do";
}

TEST(DeviceKernels, CodeIsKnownByTheHashOfItsSources) { EXPECT_EQ(device_sources().empty(), !has_device_code()); }

}  // namespace
}  // namespace plimsoll::kernels::cuda
