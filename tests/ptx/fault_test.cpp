// Deliberate faults are caught and named; the same kernels without them pass.
#include <gmock/gmock.h>

#include <limits>
#include <optional>

#include "plimsoll/format/fp8.h"
#include "plimsoll/kernels/quantize/quantize_launch.h"
#include "plimsoll/kernels/transpose/transpose_launch.h"
#include "tests/ptx/kernel_testing.h"

namespace plimsoll::ptx::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int64_t kCount = 100;
constexpr kernels::Launch kTwoBlocks = {2, 64};

struct Outcome {
  Memory memory;
  uint64_t x, y;
  std::string fault;
};

// Runs a kernel of faults.cu on 128 numbers, of which y has `floats`.
Outcome run(const Module& module, const std::string& name, kernels::Launch shape, size_t floats,
            const std::vector<float>& x, size_t offset = 0, int64_t count = kCount) {
  Outcome result;
  result.x = result.memory.add("x", x.data(), x.size() * 4, offset);
  const std::vector<float> zeros(floats);
  result.y = result.memory.add("y", zeros.data(), floats * 4, 0, /*read_only=*/false);
  result.fault = fault_of(module.kernel(name), result.memory, shape, result.x, result.y, count);
  return result;
}

std::vector<float> numbers(size_t count) {
  std::vector<float> x(count);
  for (size_t i = 0; i < count; ++i) x[i] = static_cast<float>(i) - 20.0f;
  return x;
}

void expect_caught(const Module& module, const std::string& name, kernels::Launch shape, size_t floats,
                   const char* what, size_t offset = 0) {
  EXPECT_EQ(run(module, name + "_sound", shape, floats, numbers(kCount), offset).fault, "") << name;
  EXPECT_THAT(run(module, name, shape, floats, numbers(kCount), offset).fault,
              AllOf(HasSubstr("kernel " + name + ", line "), HasSubstr("faults.cu:"), HasSubstr("block "),
                    HasSubstr("thread "), HasSubstr(what)));
}

TEST(PtxFaults, AMissingBarrierIsARaceInSharedMemory) {
  PLIMSOLL_MODULE("faults");
  // Whichever of two threads comes first: it reads what is not written yet, or the other one races with it.
  EXPECT_EQ(run(module, "missing_barrier_sound", {1, 64}, 64, numbers(64)).fault, "");
  for (int turn = 0; turn < 20; ++turn) {
    const std::string fault = run(module, "missing_barrier", {1, 64}, 64, numbers(64)).fault;
    EXPECT_THAT(fault, AllOf(HasSubstr("kernel missing_barrier, line "), HasSubstr("shared memory"),
                             ::testing::AnyOf(HasSubstr("race"), HasSubstr("not written yet"))));
  }
}

TEST(PtxFaults, ATailOffByOneIsOutOfBounds) {
  PLIMSOLL_MODULE("faults");
  expect_caught(module, "tail_off_by_one", kTwoBlocks, kCount, "out of bounds: reads 4 bytes of x, byte 400 of 400");
}

TEST(PtxFaults, AWrongShuffleMaskIsNamed) {
  PLIMSOLL_MODULE("faults");
  expect_caught(module, "mask_of_half_a_warp", {1, 64}, 2, "not in the mask");
}

TEST(PtxFaults, LanesThatEndedBeforeAShuffleAreNamed) {
  PLIMSOLL_MODULE("faults");
  EXPECT_EQ(run(module, "lanes_that_left_sound", {1, 64}, 2, numbers(40), 0, 40).fault, "");
  EXPECT_THAT(
      run(module, "lanes_that_left", {1, 64}, 2, numbers(40), 0, 40).fault,
      AllOf(HasSubstr("kernel lanes_that_left, line "), HasSubstr("shfl.sync"), HasSubstr("threads that never come")));
}

TEST(PtxFaults, APlainStoreOverAnAtomicIsARace) {
  PLIMSOLL_MODULE("faults");
  expect_caught(module, "neighbour_of_an_atomic", kTwoBlocks, 2, "race: ");
}

TEST(PtxFaults, BlocksThatShareAPlainWordRace) {
  PLIMSOLL_MODULE("faults");
  expect_caught(module, "largest_without_atomic", kTwoBlocks, 1, "race: ");
}

TEST(PtxFaults, AnUnalignedVectorIsNamed) {
  PLIMSOLL_MODULE("faults");
  expect_caught(module, "unaligned", {1, 16}, 64, "not aligned: reads 16 bytes of x", 4);
}

TEST(PtxFaults, InfLostInASaturatingConversionDiffersFromTheFormat) {
  PLIMSOLL_MODULE("faults");
  std::vector<float> x = numbers(kCount);
  x[6] = std::numeric_limits<float>::infinity();
  x[9] = -x[6];
  std::vector<uint8_t> expected;
  for (const float value : x) expected.push_back(format::E5m2::encode(value));
  Outcome sound = run(module, "inf_lost_sound", {1, 64}, kCount / 4, x);
  ASSERT_EQ(sound.fault, "");
  EXPECT_EQ(difference(sound.memory.data(sound.y), expected.data(), expected.size()), "");
  Outcome lossy = run(module, "inf_lost", {1, 64}, kCount / 4, x);
  ASSERT_EQ(lossy.fault, "");
  EXPECT_EQ(difference(lossy.memory.data(lossy.y), expected.data(), expected.size()), "byte 6: expected 124, got 123");
}

// The kernel without its n-th barrier; nothing if it has fewer.
std::optional<Kernel> without_barrier(Kernel kernel, int n) {
  for (Instruction& instruction : kernel.instructions) {
    const bool is_barrier = instruction.text == "bar.sync" || instruction.text == "barrier.sync";
    if (!is_barrier || n-- > 0) continue;
    instruction.text = "mov.b32";
    instruction.words = {"mov", "b32"};
    instruction.operands = {Operand{}, Operand{.kind = Operand::Kind::kImmediate}};
    return kernel;
  }
  return std::nullopt;
}

// run_once(kernel): the fault of a launch whose blocks take several units of work, so that each barrier has something to part.
template <class RunOnce>
void expect_each_barrier_is_missed(const Kernel& kernel, const std::string& name, int expected, RunOnce run_once) {
  EXPECT_EQ(run_once(kernel), "");
  int barriers = 0;
  for (; const std::optional<Kernel> faulty = without_barrier(kernel, barriers); ++barriers) {
    std::string fault;
    for (int turn = 0; turn < 10 && fault.empty(); ++turn) fault = run_once(*faulty);
    EXPECT_THAT(fault, AllOf(HasSubstr("shared memory"), HasSubstr(name))) << "barrier " << barriers;
  }
  EXPECT_EQ(barriers, expected);
}

TEST(PtxFaults, EveryBarrierOfAKernelIsMissedWhereItIsGone) {
  PLIMSOLL_MODULE("quantize");
  const std::string name = "quantize_rows_fp32_e4m3";
  const std::vector<float> x = numbers(4 * 700);
  expect_each_barrier_is_missed(module.kernel(name), name, 4, [&](const Kernel& kernel) {
    Memory memory;
    const float zero = 0;
    const kernels::QuantizeBlocks args{.x = pointer<void>(memory.add("x", x.data(), x.size() * 4)),
                                       .rows = 4,
                                       .cols = 700,
                                       .x_stride = 700,
                                       .codes = pointer<uint8_t>(memory.add_unwritten("codes", x.size())),
                                       .codes_stride = 700,
                                       .block_rows = 1,
                                       .scale = pointer<void>(memory.add_unwritten("scale", 16)),
                                       .scale_stride = 1,
                                       .amax = pointer<float>(memory.add("amax", &zero, 4, 0, /*read_only=*/false))};
    return fault_of(kernel, memory, {2, kernels::kQuantizeThreads}, args);
  });
}

TEST(PtxFaults, EveryBarrierOfATransposeIsMissedWhereItIsGone) {
  PLIMSOLL_MODULE("transpose");
  const std::vector<float> x = numbers(200 * 200);
  expect_each_barrier_is_missed(module.kernel("transpose_4"), "transpose_4", 2, [&](const Kernel& kernel) {
    Memory memory;
    const kernels::Transpose args{.x = pointer<void>(memory.add("x", x.data(), x.size() * 4)),
                                  .element_bytes = 4,
                                  .rows = 200,
                                  .cols = 200,
                                  .x_stride = 200,
                                  .output = pointer<void>(memory.add_unwritten("output", x.size() * 4)),
                                  .output_stride = 200};
    return fault_of(kernel, memory, {2, kernels::kTransposeThreads}, args);
  });
}

TEST(PtxFaults, AnInstructionThatIsNotKnownIsNamed) {
  const Module module = parse_module(R"(
.version 9.0
.target sm_90a
.address_size 64
.visible .entry strange()
{
	.reg .b32 %r<2>;
	ex2.approx.ftz.f32 %r1, %r0;
	ret;
}
)");
  Memory memory;
  EXPECT_EQ(fault_of(module.kernel("strange"), memory, {1, 32}),
            "kernel strange, line 8: unknown instruction ex2.approx.ftz.f32");
}

}  // namespace
}  // namespace plimsoll::ptx::testing
