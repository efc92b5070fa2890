// Kernels found by name, of a driver that fails when it is told to.
#include "plimsoll/kernels/cuda/kernel_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <stdexcept>
#include <string_view>

namespace plimsoll::kernels::cuda {
namespace {

constexpr int kOutOfMemory = 2, kNoNameThere = 500;

// Images of one kernel each; a library is its image.
constexpr std::array<const char*, 3> kImages = {"first", "second", "third"};

struct FakeDriver {
  int loads = 0, loads_that_work = 100, look_up = 0;  // look_up: result where the name is there
};
FakeDriver fake;

int load_fake(void** library, const void* image, void*, void**, unsigned, void*, void**, unsigned) {
  if (fake.loads == fake.loads_that_work) return kOutOfMemory;
  ++fake.loads;
  *library = const_cast<void*>(image);
  return 0;
}

int find_fake(void** kernel, void* library, const char* name) {
  if (std::string_view(static_cast<const char*>(library)) != name) return kNoNameThere;
  *kernel = library;
  return fake.look_up;
}

class KernelTables : public testing::Test {
 protected:
  KernelTables() {
    fake = {};
    driver_.library_load_data = &load_fake;
    driver_.library_get_kernel = &find_fake;
  }

  void* find(const char* name) {
    static const std::array<const void*, 3> images = {kImages[0], kImages[1], kImages[2]};
    return table_.find(driver_, images, name);
  }

  Driver driver_ = {};
  KernelTable table_;
};

TEST_F(KernelTables, FindsAKernelInAnyImage) {
  EXPECT_EQ(find("third"), kImages[2]);
  EXPECT_EQ(find("first"), kImages[0]);
  EXPECT_EQ(find("fourth"), nullptr);
  EXPECT_EQ(fake.loads, 3);
}

TEST_F(KernelTables, AFailedLookUpIsNotANameThatIsMissing) {
  fake.look_up = kOutOfMemory;
  EXPECT_THAT([&] { find("second"); },
              testing::ThrowsMessage<std::runtime_error>(testing::HasSubstr("second: CUDA error 2")));
  fake.look_up = 0;
  EXPECT_EQ(find("second"), kImages[1]);
}

TEST_F(KernelTables, LoadsEachImageOnceThoughALaterOneFails) {
  fake.loads_that_work = 2;
  for (int i = 0; i < 3; ++i) {
    EXPECT_THAT([&] { find("third"); },
                testing::ThrowsMessage<std::runtime_error>(testing::HasSubstr("loading kernels: CUDA error 2")));
  }
  EXPECT_EQ(fake.loads, 2);
  fake.loads_that_work = 100;
  EXPECT_EQ(find("third"), kImages[2]);
  EXPECT_EQ(fake.loads, 3);
}

}  // namespace
}  // namespace plimsoll::kernels::cuda
