// Codes that a device makes and reads, against those of a host, and against NVIDIA's cuda_fp8.h.
#include <bit>
#include <numeric>

#include "plimsoll/format/bf16.h"
#include "plimsoll/format/fp16.h"
#include "plimsoll/format/fp8.h"
#include "tests/ptx/kernel_testing.h"
#include "tests/ptx/narrow_formats.h"
#include "tests/ptx/nvidia_fp8.h"

namespace plimsoll::ptx::testing::codecs_ptx_test {
namespace {

// Numbers from all of FP32, NaN and Inf included, and around every code of FP8 and of half of FP16.
std::vector<float> numbers() {
  std::vector<float> result;
  for (uint32_t i = 0; i < 40000; ++i) result.push_back(std::bit_cast<float>(i * 107377u));
  for (uint32_t code = 0; code < 256; ++code) {
    for (const float value :
         {format::E4m3::decode(static_cast<uint8_t>(code)), format::E5m2::decode(static_cast<uint8_t>(code)),
          format::Fp16::decode(static_cast<uint16_t>(code * 251))}) {
      const auto next = format::E4m3::decode(static_cast<uint8_t>(code ^ 1));
      for (const float one :
           {value, (value + next) / 2, std::nextafter(value, 0.0f), value * 1.0625f, value * 1.125f}) {
        result.push_back(one);
      }
    }
  }
  if (result.size() % 2 != 0) result.push_back(0.0f);
  return result;
}

template <class Codec>
void check_encode(const Module& module, const std::string& kernel, format::Overflow overflow) {
  const std::vector<float> x = numbers();
  std::vector<typename Codec::Code> expected;
  for (const float value : x) expected.push_back(Codec::encode(value, overflow));
  Memory memory;
  const uint64_t input = memory.add("x", x.data(), x.size() * 4);
  const uint64_t codes = memory.add_unwritten("codes", expected.size() * sizeof(expected[0]));
  const auto blocks = static_cast<uint32_t>(kernels::pieces_of(static_cast<int64_t>(x.size()), 256));
  launch(module.kernel(kernel), memory, {blocks, 256}, input, codes, static_cast<int64_t>(x.size()));
  for (size_t i = 0; i < x.size(); ++i) {
    typename Codec::Code got;
    std::memcpy(&got, memory.data(codes) + i * sizeof(got), sizeof(got));
    ASSERT_EQ(got, expected[i]) << kernel << " of " << x[i] << ", bits " << std::bit_cast<uint32_t>(x[i]);
  }
}

template <class Codec>
void check_decode(const Module& module, const std::string& kernel) {
  std::vector<typename Codec::Code> x(size_t{1} << Codec::kBits);
  std::iota(x.begin(), x.end(), static_cast<typename Codec::Code>(0));
  Memory memory;
  const uint64_t input = memory.add("x", x.data(), x.size() * sizeof(x[0])),
                 y = memory.add_unwritten("y", x.size() * 4);
  const auto blocks = static_cast<uint32_t>(x.size() / 256);
  launch(module.kernel(kernel), memory, {blocks, 256}, input, y, static_cast<int64_t>(x.size()));
  for (size_t i = 0; i < x.size(); ++i) {
    uint32_t got;
    std::memcpy(&got, memory.data(y) + i * 4, 4);
    ASSERT_EQ(got, std::bit_cast<uint32_t>(Codec::decode(x[i]))) << kernel << " of " << i;
  }
}

template <class Codec>
void check_codec(const std::string& name) {
  PLIMSOLL_MODULE("codecs");
  check_encode<Codec>(module, "encode_" + name, format::Overflow::kSaturate);
  check_encode<Codec>(module, "encode_" + name + "_overflowing", format::Overflow::kNonFinite);
  check_encode<Codec>(module, "encode_" + name + "_by_two", format::Overflow::kSaturate);
  check_decode<Codec>(module, "decode_" + name);
}

TEST(PtxCodecs, HaveTheBitsOfTheHostInE4m3) { check_codec<format::E4m3>("e4m3"); }
TEST(PtxCodecs, HaveTheBitsOfTheHostInE5m2) { check_codec<format::E5m2>("e5m2"); }
TEST(PtxCodecs, HaveTheBitsOfTheHostInBf16) { check_codec<format::Bf16>("bf16"); }
TEST(PtxCodecs, HaveTheBitsOfTheHostInFp16) {
  check_codec<format::Fp16>("fp16");
  PLIMSOLL_MODULE("codecs");
  check_decode<format::Fp16>(module, "decode_fp16_by_card");
}

// NVIDIA's conversions saturate Inf, of which E5M2 has a code, and give NaN no sign: nothing else may differ.
template <class Codec>
void expect_nvidias_code(float x, uint8_t interpreted, uint8_t nvidias) {
  ASSERT_EQ(interpreted, nvidias) << x;
  if (std::isnan(x)) {
    ASSERT_EQ(Codec::encode(x) & 0x7f, nvidias);
  } else if (std::isinf(x) && Codec::kHasInf) {
    ASSERT_EQ(Codec::encode(x), (nvidias & 0x80) | Codec::kInfCode);
  } else {
    ASSERT_EQ(Codec::encode(x), nvidias) << x;
  }
}

TEST(PtxCodecs, AreThoseOfNvidiasHeaderButForInfAndNan) {
  if (!has_nvidia_fp8()) GTEST_SKIP() << "no cuda_fp8.h was found";
  for (const float x : numbers()) {
    expect_nvidias_code<format::E4m3>(x, e4m3_of(x), nvidia_e4m3(x));
    expect_nvidias_code<format::E5m2>(x, e5m2_of(x), nvidia_e5m2(x));
  }
  for (int code = 0; code < 256; ++code) {
    const auto one = static_cast<uint8_t>(code);
    const float e4m3 = nvidia_e4m3_value(one), e5m2 = nvidia_e5m2_value(one);
    EXPECT_TRUE(e4m3 == format::E4m3::decode(one) || (std::isnan(e4m3) && std::isnan(format::E4m3::decode(one))))
        << code;
    EXPECT_TRUE(e5m2 == format::E5m2::decode(one) || (std::isnan(e5m2) && std::isnan(format::E5m2::decode(one))))
        << code;
    EXPECT_EQ(fp16_of_e4m3(one), nvidia_e4m3_half(one)) << code;
    EXPECT_EQ(fp16_of_e5m2(one), nvidia_e5m2_half(one)) << code;
  }
}

}  // namespace
}  // namespace plimsoll::ptx::testing::codecs_ptx_test
