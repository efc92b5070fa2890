// Narrow states and weights: what the step in FP32 gives is packed a second time and compared bit for bit.
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "plimsoll/format/codec.h"
#include "plimsoll/kernels/adamw/adamw.h"
#include "plimsoll/kernels/adamw/narrow_states_testing.h"
#include "plimsoll/kernels/testing.h"
#include "plimsoll/runtime/cpu.h"
#include "plimsoll/runtime/threads.h"

namespace plimsoll::kernels {
namespace {

using namespace testing;
using runtime::Isa;

TEST(NarrowStates, ArePackedAsTheRulesSay) {
  for (Isa isa : isas_present()) {
    const runtime::ScopedIsa scope(isa);
    for (Weights weights : kWeights) {
      for (StateKind states : kStates) {
        for (int64_t count : kSizes) {
          SCOPED_TRACE(std::string(runtime::name(isa)) + " count " + std::to_string(count));
          Tensor got(weights, states, count);
          const Tensor wide = got.in_fp32();
          adamw(got.args());
          if (states == StateKind::k8Bit) expect_8bit_states(got, wide);
          for (size_t i = 0; i < got.grad.size(); ++i) {
            if (weights == Weights::kSplit) {
              ASSERT_EQ(got.narrow[i], Bf16::encode(wide.master[i])) << i;
              ASSERT_EQ(got.correction[i], correction_of(wide.master[i], got.narrow[i])) << i;
            } else if (weights == Weights::kAlone) {
              ASSERT_EQ(got.narrow[i],
                        Bf16::encode_stochastic_16(wide.master[i], static_cast<uint16_t>(word_of(i) >> 16)))
                  << i;
            } else {
              ASSERT_EQ(got.master[i], wide.master[i]) << i;
            }
          }
        }
      }
    }
  }
}

TEST(NarrowStates, HaveTheSameBitsOnEveryIsaAndThreadCount) {
  const int threads = runtime::threads();
  for (Weights weights : kWeights) {
    for (StateKind states : kStates) {
      for (int64_t count : kSizes) {
        Tensor first(weights, states, count);
        {
          const runtime::ScopedIsa scope(Isa::kPortable);
          runtime::set_threads(1);
          first.amax = adamw(first.args());
        }
        for (Isa isa : isas_present()) {
          const runtime::ScopedIsa scope(isa);
          for (int team : {1, 3}) {
            runtime::set_threads(team);
            Tensor again(weights, states, count);
            again.amax = adamw(again.args());
            EXPECT_TRUE(again == first) << runtime::name(isa) << " count " << count;
          }
        }
      }
    }
  }
  runtime::set_threads(threads);
}

TEST(NarrowStates, APartHasTheBitsOfTheWhole) {
  for (Isa isa : isas_present()) {
    const runtime::ScopedIsa scope(isa);
    for (Weights weights : kWeights) {
      for (StateKind states : kStates) {
        Tensor whole(weights, states, 1000), parts = whole;
        adamw(whole.args());
        const std::vector<int64_t> cuts = states == StateKind::k8Bit ? std::vector<int64_t>{0, 32, 320, 352, 1000}
                                                                     : std::vector<int64_t>{0, 1, 60, 70, 333, 1000};
        for (size_t part = 0; part + 1 < cuts.size(); ++part) {
          const int64_t from = cuts[part];
          AdamW args = parts.args();
          const int64_t bytes = states == StateKind::kFp32 ? 4 : states == StateKind::kBf16 ? 2 : 1;
          const auto at = [&](void* data, int64_t size) {
            return static_cast<void*>(static_cast<char*>(data) + from * size);
          };
          if (args.master != nullptr) args.master += from;
          if (args.narrow != nullptr) args.narrow = at(args.narrow, 2);
          if (args.correction != nullptr) args.correction += from;
          args.grad = static_cast<const float*>(args.grad) + from;
          args.moment1 = at(args.moment1, bytes);
          args.moment2 = at(args.moment2, bytes);
          args.scale1 += from / 32;
          args.scale2 += from / 32;
          args.first = from;
          args.count = cuts[part + 1] - from;
          adamw(args);
        }
        EXPECT_TRUE(parts == whole) << runtime::name(isa);
      }
    }
  }
}

TEST(NarrowStates, NothingPastTheEndIsTouched) {
  for (Isa isa : isas_present()) {
    const runtime::ScopedIsa scope(isa);
    for (Weights weights : kWeights) {
      for (StateKind states : kStates) {
        const Tensor before(weights, states, 160);
        Tensor after = before;
        AdamW args = after.args();
        args.count = 67;
        adamw(args);
        const auto expect_kept = [&](const auto& now, const auto& then, size_t from) {
          EXPECT_EQ(std::memcmp(now.data() + from, then.data() + from, (then.size() - from) * sizeof(then[0])), 0);
        };
        expect_kept(after.master, before.master, 67);
        expect_kept(after.narrow, before.narrow, 67);
        expect_kept(after.correction, before.correction, 67);
        expect_kept(after.codes1, before.codes1, 67);
        expect_kept(after.codes2, before.codes2, 67);
        expect_kept(after.bf16_1, before.bf16_1, 67);
        expect_kept(after.scale1, before.scale1, 3);
        expect_kept(after.scale2, before.scale2, 3);
      }
    }
  }
}

}  // namespace
}  // namespace plimsoll::kernels
