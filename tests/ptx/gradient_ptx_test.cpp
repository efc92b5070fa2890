// Kernels of gradient.cu against gradient_cpu.cpp: the same bits of tensors and of sums; any NaN counts as any other.
#include <bit>
#include <limits>

#include "plimsoll/kernels/gradient/gradient.h"
#include "plimsoll/kernels/gradient/gradient_launch.h"
#include "plimsoll/kernels/testing.h"
#include "tests/ptx/kernel_testing.h"

namespace plimsoll::ptx::testing::gradient_ptx_test {
namespace {

using kernels::GradientBlockSum;
using kernels::GradientGroupSum;
using kernels::GradientPass;
using kernels::GradientSummary;
using kernels::GradientTable;
using kernels::GradientTensor;
using kernels::testing::Array;
using kernels::testing::sample;

constexpr float kInf = std::numeric_limits<float>::infinity(), kNan = std::numeric_limits<float>::quiet_NaN();
constexpr Format kFormats[] = {Format::kFp32, Format::kBf16, Format::kFp16};

// Tensors of the host, and their copies on the device.
struct Gradients {
  std::vector<Format> formats;
  std::vector<Array> arrays;
  std::vector<size_t> offsets;  // bytes of the copies from an aligned address

  void add(Format format, const std::vector<float>& values, size_t offset = 0) {
    formats.push_back(format);
    arrays.emplace_back(format, values);
    offsets.push_back(offset);
  }
  std::vector<GradientTensor> on_host() {
    std::vector<GradientTensor> list;
    for (size_t i = 0; i < arrays.size(); ++i) list.push_back({arrays[i].data(), formats[i], arrays[i].count()});
    return list;
  }
  std::vector<GradientTensor> on_device(Memory& memory, bool read_only) {
    std::vector<GradientTensor> list = on_host();
    for (size_t i = 0; i < list.size(); ++i) {
      const auto bytes = static_cast<size_t>(list[i].count * format::bytes(formats[i]));
      list[i].data =
          pointer<void>(memory.add("gradient " + std::to_string(i), list[i].data, bytes, offsets[i], read_only));
    }
    return list;
  }
};

// Launches of gradient_cuda.cpp. has_sums: the kernel adds them up.
std::vector<GradientGroupSum> run(const Module& module, Memory& memory, const GradientPass& args, bool has_sums) {
  const int64_t blocks = kernels::gradient_blocks(args), groups = kernels::gradient_groups(blocks);
  const uint64_t sums = memory.add_unwritten("sums", static_cast<size_t>(blocks) * sizeof(GradientBlockSum));
  const uint64_t found = memory.add_unwritten("groups", static_cast<size_t>(groups) * sizeof(GradientGroupSum));
  const Kernel& kernel = module.kernel(!has_sums ? "gradient_scale" : args.write ? "gradient_write" : "gradient_read");
  uint64_t place = sums;
  for (const GradientTable& table : kernels::gradient_tables(args)) {
    launch(kernel, memory, kernels::gradient_launch(table, kMultiprocessors), table, args.scale,
           has_sums ? place : uint64_t{0});
    place += table.pieces * sizeof(GradientBlockSum);
  }
  std::vector<GradientGroupSum> result(static_cast<size_t>(groups));
  if (!has_sums || groups == 0) return result;
  launch(module.kernel("gradient_groups"), memory, kernels::gradient_groups_launch(blocks, kMultiprocessors), sums,
         blocks, found);
  std::memcpy(result.data(), memory.data(found), result.size() * sizeof(GradientGroupSum));
  return result;
}

void expect_same_summary(const GradientSummary& got, const GradientSummary& expected, const std::string& where) {
  if (std::isnan(expected.sum_of_squares)) {
    EXPECT_TRUE(std::isnan(got.sum_of_squares)) << where;
  } else {
    EXPECT_EQ(std::bit_cast<uint64_t>(got.sum_of_squares), std::bit_cast<uint64_t>(expected.sum_of_squares)) << where;
  }
  EXPECT_EQ(got.non_finite, expected.non_finite) << where;
  EXPECT_EQ(got.first_non_finite, expected.first_non_finite) << where;
}

void expect_same_pass(const Module& module, Gradients gradients, float scale, bool write, bool has_sums,
                      const std::string& where) {
  Memory memory;
  const std::vector<GradientTensor> device = gradients.on_device(memory, !write), host = gradients.on_host();
  GradientPass args{.tensors = device.data(), .tensor_count = device.size(), .scale = scale, .write = write};
  const std::vector<GradientGroupSum> groups = run(module, memory, args, has_sums);
  args.tensors = host.data();
  const GradientSummary expected = kernels::gradient_pass(args);
  if (has_sums) expect_same_summary(kernels::gradient_summary(args, groups.data()), expected, where);
  if (!write) return;
  for (size_t i = 0; i < host.size(); ++i) {
    if (host[i].count == 0) continue;
    expect_same({1, host[i].count, host[i].count, host[i].format},
                memory.data(reinterpret_cast<uint64_t>(device[i].data)), host[i].data, /*exact=*/false,
                where + ", gradient " + std::to_string(i));
  }
}

void check(const Module& module, const Gradients& gradients, float scale, const std::string& where) {
  const std::string scaled = where + ", times " + std::to_string(scale);
  expect_same_pass(module, gradients, scale, /*write=*/false, /*has_sums=*/true, scaled + ", read");
  expect_same_pass(module, gradients, scale, /*write=*/true, /*has_sums=*/true, scaled + ", written");
  expect_same_pass(module, gradients, scale, /*write=*/true, /*has_sums=*/false, scaled + ", written alone");
}

Gradients mixed(std::initializer_list<int64_t> counts) {
  Gradients result;
  unsigned seed = 0;
  for (const int64_t count : counts) {
    for (const Format format : kFormats) result.add(format, sample(count, ++seed));
  }
  return result;
}

TEST(PtxGradient, HasTheBitsOfTheCpuKernel) {
  PLIMSOLL_MODULE("gradient");
  const Gradients gradients = mixed({0, 1, 2, 15, 16, 17, 63, 64, 65, 1001, 4095, 4096, 4097, 0});
  for (const float scale : {1.0f, 0.3f, 0x1p-140f, 3e38f, kInf, kNan}) check(module, gradients, scale, "mixed");
}

TEST(PtxGradient, HasTheBitsOfTheCpuKernelOnAHundredThousandElements) {
  PLIMSOLL_MODULE("gradient");
  for (const Format format : kFormats) {
    Gradients gradients;
    gradients.add(format, sample(100'003, 1));
    check(module, gradients, 0.7f, std::string(format::info(format).name));
  }
}

TEST(PtxGradient, TakesAnyAlignment) {
  PLIMSOLL_MODULE("gradient");
  for (const Format format : kFormats) {
    for (size_t elements = 1; elements < 4; ++elements) {
      Gradients gradients;
      const size_t offset = elements * static_cast<size_t>(format::bytes(format));
      for (const int64_t count : {7, 4096, 5000}) gradients.add(format, sample(count, 3), offset);
      check(module, gradients, 0.5f, std::string(format::info(format).name) + " at " + std::to_string(offset));
    }
  }
}

TEST(PtxGradient, FindsWhatIsNotFiniteAtEveryPlace) {
  PLIMSOLL_MODULE("gradient");
  for (const Format format : kFormats) {
    for (const float worst : {kInf, -kInf, kNan}) {
      for (const size_t place : {0u, 15u, 16u, 4095u, 4096u, 8191u, 9000u}) {
        Gradients gradients;
        gradients.add(Format::kFp32, sample(5000, 1));
        std::vector<float> values = sample(9001, 2);
        values[place] = worst;
        gradients.add(format, values);
        gradients.add(Format::kBf16, {worst, 1.0f});
        const std::string where = std::string(format::info(format).name) + " " + std::to_string(place);
        expect_same_pass(module, gradients, 0.5f, /*write=*/true, /*has_sums=*/true, where);
      }
    }
  }
}

TEST(PtxGradient, ProductsBeyondFp32Count) {
  PLIMSOLL_MODULE("gradient");
  Gradients gradients;
  gradients.add(Format::kFp32, {1.0f, 3e38f, -3e38f});
  gradients.add(Format::kBf16, {0x1p-133f, 3e38f});
  gradients.add(Format::kFp16, {60000.0f, 0x1p-24f});  // beyond FP16 alone: an Inf is written, and none counted
  for (const float scale : {2.0f, 0x1p100f, 0x1p-100f}) check(module, gradients, scale, "large");
}

TEST(PtxGradient, TakesMoreTensorsThanATableHas) {
  PLIMSOLL_MODULE("gradient");
  Gradients gradients;
  for (unsigned i = 0; i < 2 * kernels::kGradientTable + 5; ++i) {
    gradients.add(kFormats[i % 3], sample(i % 7 == 0 ? 0 : i % 40, i));
  }
  gradients.arrays[300].set(0, kInf);
  check(module, gradients, 0.25f, "many");
}

TEST(PtxGradient, AddsBlocksInGroups) {
  PLIMSOLL_MODULE("gradient");
  constexpr int64_t kGroup = kernels::kGradientGroup;
  for (const int64_t blocks : {int64_t{1}, int64_t{31}, kGroup - 1, kGroup, kGroup + 1, 9 * kGroup + 33}) {
    for (const int64_t bad : {int64_t{-1}, int64_t{0}, blocks / 2, blocks - 1}) {
      std::vector<GradientBlockSum> sums(static_cast<size_t>(blocks));
      const std::vector<float> values = sample(blocks, 5);
      for (size_t i = 0; i < sums.size(); ++i) sums[i] = {std::abs(static_cast<double>(values[i])) * 0x1p-30, 0};
      if (bad >= 0) sums[static_cast<size_t>(bad)].non_finite = 4096;
      if (bad >= 0) sums.back().non_finite = 3;
      Memory memory;
      const int64_t count = kernels::gradient_groups(blocks);
      const uint64_t device = memory.add("sums", sums.data(), sums.size() * sizeof(GradientBlockSum)),
                     found = memory.add_unwritten("groups", static_cast<size_t>(count) * sizeof(GradientGroupSum));
      launch(module.kernel("gradient_groups"), memory, kernels::gradient_groups_launch(blocks, kMultiprocessors),
             device, blocks, found);
      for (int64_t group = 0; group < count; ++group) {
        GradientGroupSum expected, got;
        for (int64_t i = group * kGroup; i < std::min(blocks, (group + 1) * kGroup); ++i) {
          const GradientBlockSum& sum = sums[static_cast<size_t>(i)];
          expected.sum_of_squares += sum.sum_of_squares;
          expected.non_finite += static_cast<int32_t>(sum.non_finite);
          if (sum.non_finite > 0 && expected.first < 0) expected.first = static_cast<int32_t>(i - group * kGroup);
        }
        std::memcpy(&got, memory.data(found) + static_cast<size_t>(group) * sizeof(got), sizeof(got));
        const std::string where = std::to_string(blocks) + " blocks, group " + std::to_string(group);
        EXPECT_EQ(std::bit_cast<uint64_t>(got.sum_of_squares), std::bit_cast<uint64_t>(expected.sum_of_squares))
            << where;
        EXPECT_EQ(got.non_finite, expected.non_finite) << where;
        EXPECT_EQ(got.first, expected.first) << where;
      }
    }
  }
}

TEST(PtxGradient, CountsExponentsOfASample) {
  PLIMSOLL_MODULE("gradient");
  for (const int64_t stride : {1, 2, 1100}) {
    Gradients gradients = mixed({0, 1, 63, 65, 1001, 70'000});
    gradients.arrays[4].set(0, kInf);
    gradients.arrays[15].set(1, kNan);
    gradients.arrays[16].set(2, 0x1p-133f);
    std::vector<int32_t> expected(kernels::kGradientBins, 7);
    const std::vector<int32_t> before = expected;
    const int64_t distance = stride * kernels::kGradientSampleRun;
    for (const Array& array : gradients.arrays) {
      for (int64_t i = 0; i < array.count(); ++i) {
        const float x = std::abs(array.at(i));
        if (i % distance >= kernels::kGradientSampleRun || x == 0 || !std::isfinite(x)) continue;
        ++expected[static_cast<size_t>(x < std::numeric_limits<float>::min() ? 0 : std::ilogb(x) + 127)];
      }
    }
    Memory memory;
    const std::vector<GradientTensor> device = gradients.on_device(memory, /*read_only=*/true);
    const uint64_t counts = memory.add("counts", before.data(), before.size() * 4, 0, /*read_only=*/false);
    for (const GradientTable& table :
         kernels::gradient_tables(device.data(), device.size(), distance, kernels::kGradientSampleRun)) {
      launch(module.kernel("gradient_histogram"), memory, kernels::gradient_histogram_launch(table, kMultiprocessors),
             table, distance, counts);
    }
    std::vector<int32_t> got(expected.size());
    std::memcpy(got.data(), memory.data(counts), got.size() * 4);
    EXPECT_EQ(got, expected) << "stride " << stride;
  }
}

}  // namespace
}  // namespace plimsoll::ptx::testing::gradient_ptx_test
