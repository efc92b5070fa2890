#include "plimsoll/shard/average/compressed_average.h"

#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <torch/utils.h>

#include <cmath>
#include <limits>

#include "plimsoll/shard/communicator/ranks_testing.h"

namespace plimsoll::shard {
namespace {

constexpr int64_t kAveraged = 1000;  // no multiple of ranks or blocks
constexpr Compression kKinds[] = {Compression::kFp16, Compression::kBf16, Compression::kFp8};

// The error of one rounding, relative to the largest magnitude that shares its scale.
double rounding(Compression kind) {
  switch (kind) {
    case Compression::kFp16:
      return 0x1p-11;
    case Compression::kBf16:
      return 0x1p-8;
    default:
      return 0x1p-4;
  }
}

at::Tensor values_of(int64_t rank, int64_t step) {
  torch::manual_seed(static_cast<uint64_t>(1000 * rank + step));
  return at::randn({kAveraged}) * std::ldexp(1.0, static_cast<int>(step % 5));
}

at::Tensor average(CompressedAverage& compressed, const at::Tensor& values, const at::Tensor& flags) {
  compressed.start(values, flags);
  compressed.advance();
  const CompressedAverage::Result result = compressed.finish();
  EXPECT_TRUE(result.flags.equal(at::ones({2}, at::kByte)));
  return result.values;
}

at::Tensor flags_of(int64_t rank) {
  at::Tensor flags = at::zeros({2}, at::kByte);
  flags[rank % 2] = 1;
  return flags;
}

// Over any number of steps what has arrived is the sum of the averages, but for what the last step left: of each rank's
// values one rounding, and one of their sum. The largest magnitude that is rounded: that of a step, and what was left.
TEST(CompressedAverage, LosesNothingButTheLastRounding) {
  testing::on_ranks(3, [](const Launch& launch) {
    const auto ranks = testing::connect(launch);
    for (const Compression kind : kKinds) {
      CompressedAverage compressed(kind, ranks, launch.rank, averaging_over(3), kAveraged);
      at::Tensor arrived = at::zeros({kAveraged}, at::kDouble), exact = arrived.clone();
      double largest = 0;
      for (int64_t step = 0; step < 40; ++step) {
        for (int64_t rank = 0; rank < 3; ++rank) {
          const at::Tensor values = values_of(rank, step);
          exact += values.to(at::kDouble) / 3;
          largest = std::max(largest, values.abs().max().item<double>());
        }
        const at::Tensor mine = values_of(launch.rank, step) / averaging_over(3).predivide;
        const at::Tensor result = average(compressed, mine, flags_of(launch.rank));
        arrived += result.to(at::kDouble);
        const at::Tensor all = ranks->all_gather(result.unsqueeze(0));
        EXPECT_TRUE(all[1].equal(all[0]) && all[2].equal(all[0]));
      }
      const double error = (arrived - exact).abs().max().item<double>();
      const double left = 2 * rounding(kind) * largest / (1 - rounding(kind));
      EXPECT_LE(error, left + 40 * 0x1p-22 * largest) << static_cast<int>(kind);
      EXPECT_GT(error, 0);
    }
  });
}

TEST(CompressedAverage, SendsFewerBytes) {
  testing::on_ranks(2, [](const Launch& launch) {
    const auto ranks = testing::connect(launch);
    const double fp32 = 2 * 0.5 * 4 * (1 << 16);  // by a ring
    for (const Compression kind : kKinds) {
      CompressedAverage compressed(kind, ranks, launch.rank, averaging_over(2), 1 << 16);
      compressed.start(at::zeros({1 << 16}), flags_of(launch.rank));
      compressed.advance();
      compressed.finish();
      const double share = static_cast<double>(compressed.sent_bytes()) / fp32;
      const double expected = kind == Compression::kFp8 ? (1 + 4.0 / kCompressedBlock) / 4 : 0.5;
      EXPECT_NEAR(share, expected, 2 / fp32);  // the flags
    }
  });
}

TEST(CompressedAverage, WhatIsNotFiniteArrivesAndLeavesNothingBehind) {
  testing::on_ranks(2, [](const Launch& launch) {
    const auto ranks = testing::connect(launch);
    for (const Compression kind : kKinds) {
      for (const float bad : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
        CompressedAverage compressed(kind, ranks, launch.rank, averaging_over(2), kAveraged);
        at::Tensor values = values_of(launch.rank, 0);
        if (launch.rank == 1) values[700] = bad;
        EXPECT_FALSE(std::isfinite(average(compressed, values, flags_of(launch.rank))[700].item<float>()));
        const at::Tensor next = average(compressed, values_of(launch.rank, 1), flags_of(launch.rank));
        EXPECT_TRUE(next.isfinite().all().item<bool>());
      }
    }
  });
}

}  // namespace
}  // namespace plimsoll::shard
