// Kernels of rotary.cu against those of rotary_cpu.cpp: the same codes of every number; any NaN counts as any other.
#include <limits>

#include "plimsoll/kernels/rotary/rotary_launch.h"
#include "tests/ptx/array_testing.h"

namespace plimsoll::ptx::testing::rotary_ptx_test {
namespace {

using kernels::Rotary;
using kernels::testing::Array;
using kernels::testing::sample;

constexpr Format kWide[] = {Format::kFp32, Format::kBf16, Format::kFp16};
constexpr float kInfinity = std::numeric_limits<float>::infinity();

struct Case {
  int64_t tokens = 6, heads = 3, channels = 40, rotated = 40, positions = 3, repeats = 2;
  Format format = Format::kFp32;
  bool interleaved = false, transposed = false;
  int64_t gap = 5;  // elements between the heads of x
  int64_t copied_heads = 0;
  size_t offset = 0;   // bytes from an aligned address to x, y and the angles
  float worst = 0.0f;  // in the middle of x, unless 0

  int64_t head_stride() const { return channels + gap; }
  int64_t token_stride() const { return heads * head_stride() + gap; }
};

std::string describe(const Case& c) {
  return std::to_string(c.tokens) + " x " + std::to_string(c.heads) + " x " + std::to_string(c.channels) + ", " +
         std::to_string(c.rotated) + " rotated, " + std::to_string(c.copied_heads) + " copied, " + name_of(c.format) +
         (c.interleaved ? " interleaved" : "") + (c.transposed ? " transposed" : "") + ", " + std::to_string(c.offset) +
         " bytes off";
}

void check(const Module& module, const Case& c) {
  Array x(c.format, sample(c.tokens * c.token_stride(), 1)), y(c.format, c.tokens * c.heads * c.channels);
  if (c.worst != 0) x.set(x.count() / 2, c.worst);
  Array cosine(Format::kFp32, sample(c.positions * c.rotated, 2)),
      sine(Format::kFp32, sample(c.positions * c.rotated, 3));
  Rotary args{.tokens = c.tokens,
              .heads = c.heads,
              .channels = c.channels,
              .rotated = c.rotated,
              .copied_heads = c.copied_heads,
              .x = x.data(),
              .x_token_stride = c.token_stride(),
              .x_head_stride = c.head_stride(),
              .y = y.data(),
              .format = c.format,
              .cosine = cosine.floats(),
              .sine = sine.floats(),
              .positions = c.positions,
              .repeats = c.repeats,
              .interleaved = c.interleaved,
              .transposed = c.transposed};
  kernels::rotary(args);

  Memory memory;
  const auto copy = [&](const char* name, const Array& array, Format format) {
    return memory.add(name, array.data(), static_cast<size_t>(array.count() * format::bytes(format)), c.offset);
  };
  args.x = pointer<void>(copy("x", x, c.format));
  args.y = pointer<void>(memory.add_unwritten("y", static_cast<size_t>(y.count() * format::bytes(c.format)), c.offset));
  args.cosine = pointer<float>(copy("cosine", cosine, Format::kFp32));
  args.sine = pointer<float>(copy("sine", sine, Format::kFp32));
  launch(module.kernel("rotary_" + name_of(c.format)), memory, kernels::rotary_launch(args, kMultiprocessors), args);
  expect_same({c.tokens * c.heads, c.channels, c.channels, c.format}, memory.data(address(args.y)), y.data(),
              /*exact=*/false, describe(c));
}

// body(c) with each format, each order of pairs, and each matrix.
template <class Body>
void for_kinds(Body body) {
  for (const Format format : kWide) {
    for (const bool interleaved : {false, true}) {
      for (const bool transposed : {false, true}) {
        body(Case{.format = format, .interleaved = interleaved, .transposed = transposed});
      }
    }
  }
}

TEST(PtxRotary, HasTheBytesOfTheCpuKernel) {
  PLIMSOLL_MODULE("rotary");
  for_kinds([&](Case c) {
    check(module, c);
    c.gap = 8;  // runs are aligned
    for (const int64_t rotated : {16, 32, 48}) {
      for (const int64_t copied : {0, 1, 3}) {
        c.channels = 48;
        c.rotated = rotated;
        c.copied_heads = copied;
        check(module, c);
      }
    }
  });
}

// Channels around a run, and behind the pairs; aligned and not.
TEST(PtxRotary, HasTheBytesOfTheCpuKernelInEachShape) {
  PLIMSOLL_MODULE("rotary");
  for_kinds([&](const Case& kind) {
    for (const int64_t rotated : {0, 2, 8, 14, 16, 18, 30, 32, 34, 64}) {
      for (const int64_t rest : {0, 1, 3, 8, 16, 24}) {
        Case c = kind;
        c.rotated = rotated;
        c.channels = rotated + rest;
        c.gap = rest == 1 ? 5 : 0;
        c.copied_heads = rest % 3;
        check(module, c);
      }
    }
    if (::testing::Test::HasFatalFailure()) return;
    for (const size_t offset : {4u, 8u}) {
      Case c = kind;
      c.channels = c.rotated = 32;
      c.gap = 0;
      c.offset = offset;
      check(module, c);
    }
  });
}

// More heads, or channels, than a block's threads take at once; and nothing.
TEST(PtxRotary, HasTheBytesOfTheCpuKernelInManyBlocks) {
  PLIMSOLL_MODULE("rotary");
  for_kinds([&](const Case& kind) {
    for (const auto& [tokens, heads, channels, rotated] : {std::array<int64_t, 4>{5, 70, 32, 32},
                                                           {4, 150, 16, 8},
                                                           {3, 2, 2100, 2080},
                                                           {3, 5, 1200, 1056},
                                                           {0, 3, 32, 32},
                                                           {3, 0, 32, 32},
                                                           {1, 1, 2, 2}}) {
      Case c = kind;
      c.tokens = tokens;
      c.heads = heads;
      c.channels = channels;
      c.rotated = rotated;
      c.gap = 0;
      c.copied_heads = heads / 3;
      check(module, c);
    }
  });
}

TEST(PtxRotary, HasTheBytesOfTheCpuKernelOnAHundredThousandElements) {
  PLIMSOLL_MODULE("rotary");
  check(module, {.tokens = 52,
                 .heads = 20,
                 .channels = 96,
                 .rotated = 96,
                 .positions = 13,
                 .repeats = 4,
                 .format = Format::kBf16,
                 .gap = 0,
                 .copied_heads = 4});
}

TEST(PtxRotary, ShowsWhatIsNotFinite) {
  PLIMSOLL_MODULE("rotary");
  for (const float worst : {kInfinity, -kInfinity, std::numeric_limits<float>::quiet_NaN(), 3e38f}) {
    for_kinds([&](Case c) {
      c.gap = 0;
      c.worst = worst;
      check(module, c);
      c.channels = c.rotated = 48;
      check(module, c);
    });
  }
}

}  // namespace
}  // namespace plimsoll::ptx::testing::rotary_ptx_test
