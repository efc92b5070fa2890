#include "plimsoll/io/mapping_guard.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

#include <atomic>
#include <csignal>
#include <functional>
#include <thread>
#include <vector>

#include "plimsoll/io/error.h"
#include "plimsoll/io/error_testing.h"
#include "plimsoll/io/mapped_file.h"
#include "plimsoll/io/safetensors.h"
#include "plimsoll/io/testing.h"

namespace plimsoll::io {
namespace {

constexpr size_t kBytes = 1 << 20;

int64_t sum_of(std::span<const std::byte> bytes) {
  int64_t sum = 0;
  for (const std::byte byte : bytes) sum += static_cast<int64_t>(byte);
  return sum;
}

TEST(MappingGuard, AFileThatIsShortenedIsOneErrorUntilItIsUnmapped) {
  const TemporaryDirectory folder;
  write_plainly(folder / "file", std::string(kBytes, '\1'));
  {
    const MappedFile file(folder / "file"), other(folder / "file");
    EXPECT_EQ(sum_of(file.bytes()), kBytes);
    std::filesystem::resize_file(folder / "file", 4096);
    EXPECT_EQ(error_of(check_mapped_files), "");  // nobody has asked for what is lost
    EXPECT_EQ(sum_of(file.bytes()), 4096);
    EXPECT_NE(error_of(check_mapped_files).find((folder / "file").native() + ": expected the bytes"),
              std::string::npos);
    EXPECT_EQ(sum_of(other.bytes().last(1)), 0);
  }
  EXPECT_EQ(error_of(check_mapped_files), "");
}

TEST(MappingGuard, AnyThreadMayBeTheOneThatReads) {
  const TemporaryDirectory folder;
  write_plainly(folder / "file", std::string(kBytes, '\1'));
  const MappedFile file(folder / "file");
  std::filesystem::resize_file(folder / "file", kBytes / 2);
  std::vector<std::thread> threads;
  std::atomic<int64_t> sum = 0;
  for (size_t i = 0; i < 8; ++i) {
    threads.emplace_back([&, i] { sum += sum_of(file.bytes().subspan(i * kBytes / 8, kBytes / 8)); });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(sum, kBytes / 2);
  EXPECT_NE(error_of(check_mapped_files), "");
}

TEST(MappingGuard, ATensorOfAShortenedFileIsNotWrittenElsewhere) {
  const TemporaryDirectory folder;
  save_safetensors(folder / "from", {{"weight", at::arange(1 << 18, at::kFloat)}});
  const TensorMap tensors = SafetensorsFile(folder / "from").tensors();
  std::filesystem::resize_file(folder / "from", 8192);
  EXPECT_EQ(tensors.at("weight")[-1].item<float>(), 0);
  EXPECT_NE(error_of([&] { save_safetensors(folder / "to", tensors); }).find("from: expected the bytes"),
            std::string::npos);
  EXPECT_FALSE(std::filesystem::exists(folder / "to"));
}

TEST(MappingGuard, AMovedMappingIsForgottenOnce) {
  const TemporaryDirectory folder;
  write_plainly(folder / "file", std::string(kBytes, '\1'));
  MappedFile file(folder / "file");
  {
    const MappedFile moved(std::move(file));
    std::filesystem::resize_file(folder / "file", 0);
    EXPECT_EQ(sum_of(moved.bytes()), 0);
    EXPECT_NE(error_of(check_mapped_files), "");
  }
  EXPECT_EQ(error_of(check_mapped_files), "");
}

TEST(MappingGuardDeathTest, ABusErrorElsewhereEndsTheProcess) {
  ::testing::FLAGS_gtest_death_test_style = "threadsafe";
  const TemporaryDirectory folder;
  write_plainly(folder / "file", std::string(kBytes, '\1'));
  EXPECT_EXIT(
      {
        const MappedFile file(folder / "file");
        std::raise(SIGBUS);
        std::raise(SIGBUS);
      },
      ::testing::KilledBySignal(SIGBUS), "");
}

}  // namespace
}  // namespace plimsoll::io
