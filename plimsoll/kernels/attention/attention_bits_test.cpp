// The bits of a result: the same for any number of threads and whatever else is in the batch.
#include <gtest/gtest.h>

#include <optional>

#include "plimsoll/kernels/attention/attention_test_support.h"

namespace plimsoll::kernels {
namespace {

using namespace testing;

void run(const AttentionProblem& problem, AttentionResult& result) {
  run_forward(problem, result);
  if (!problem.c.codes) run_backward(problem, result);
}

std::vector<AttentionCase> cases() {
  std::vector<AttentionCase> result;
  for (Format format : {Format::kFp32, Format::kBf16}) {
    for (int64_t queries : {3, 200}) {
      AttentionCase c = {.format = format, .causal = Causal::kBottomRight, .dropout = queries > 8 ? 0.25f : 0.0f};
      c.shape.queries = queries;
      c.shape.keys = 230;
      result.push_back(c);
      c.bias = Extent::kOverBatch;
      c.mask = Extent::kOverHeadsAndQueries;
      result.push_back(c);
      c.window = 75;
      result.push_back(c);
    }
  }
  return result;
}

TEST(AttentionBits, DoNotDependOnThreads) {
  for (runtime::Isa isa : attention_isas()) {
    const runtime::ScopedIsa scope(isa);
    for (const AttentionCase& c : cases()) {
      SCOPED_TRACE(describe(c));
      const AttentionProblem problem(c);
      std::optional<AttentionResult> first;
      for (int threads : {1, 2, 3}) {
        const ScopedThreads team(threads);
        AttentionResult result(c);
        run(problem, result);
        if (!first) first.emplace(result);
        EXPECT_TRUE(same(result.output.array, first->output.array));
        EXPECT_TRUE(same(result.lse, first->lse));
        EXPECT_TRUE(same(result.grad_q.array, first->grad_q.array));
        EXPECT_TRUE(same(result.grad_k.array, first->grad_k.array));
        EXPECT_TRUE(same(result.grad_v.array, first->grad_v.array));
        EXPECT_TRUE(same(result.grad_bias, first->grad_bias));
      }
    }
  }
}

TEST(AttentionBits, DoNotDependOnTheRestOfTheBatch) {
  for (runtime::Isa isa : attention_isas()) {
    const runtime::ScopedIsa scope(isa);
    for (AttentionCase c : cases()) {
      SCOPED_TRACE(describe(c));
      const AttentionProblem both(c);
      AttentionProblem one = both;
      one.c.shape.batch = 1;
      AttentionResult of_both(c), of_one(one.c);
      run(both, of_both);
      run(one, of_one);
      const AttentionShape& s = one.c.shape;
      for (int64_t h = 0; h < s.heads; ++h) {
        for (int64_t i = 0; i < s.queries; ++i) {
          for (int64_t channel = 0; channel < s.channels; ++channel) {
            ASSERT_EQ(of_one.output.at(0, h, i, channel), of_both.output.at(0, h, i, channel));
            ASSERT_EQ(of_one.grad_q.at(0, h, i, channel), of_both.grad_q.at(0, h, i, channel));
          }
        }
      }
    }
  }
}

// Queries begin .. end - 1 over the keys up to the last of them, as in decoding and in a chunk of a prompt.
void run_chunk(const AttentionProblem& problem, int64_t begin, int64_t end, AttentionResult& result) {
  AttentionForward args = forward_args(problem, result);
  const auto move = [&](auto& tensor) {
    using Byte = std::conditional_t<std::is_const_v<std::remove_pointer_t<decltype(tensor.data)>>, const char, char>;
    tensor.data = static_cast<Byte*>(tensor.data) + begin * tensor.row_stride * format::bytes(args.format);
  };
  move(args.q);
  move(args.output);
  args.lse = nullptr;
  args.shape.queries = end - begin;
  args.shape.keys = end;
  attention_forward(args);
}

bool same_bits(const Array& a, const Array& b) { return same(a, b); }
bool same_values(const Array& a, const Array& b) {
  for (int64_t i = 0; i < a.count(); ++i) {
    if (a.at(i) != b.at(i) && !same(a, b, i)) return false;
  }
  return a.count() == b.count();
}

void expect_chunks_have_the_bits_of_the_whole(const AttentionProblem& problem,
                                              bool (*same_as)(const Array&, const Array&) = same_bits) {
  const AttentionCase& c = problem.c;
  AttentionResult whole(c);
  run_forward(problem, whole);
  for (int threads : {1, 3}) {
    const ScopedThreads team(threads);
    AttentionResult chunks(c);
    const int64_t sizes[] = {37, 1, 8, 3, 12, 1, 1, 80};
    for (int64_t begin = 0, i = 0; begin < c.shape.queries; ++i) {
      const int64_t end = std::min(begin + sizes[i % 8], c.shape.queries);
      run_chunk(problem, begin, end, chunks);
      begin = end;
    }
    EXPECT_TRUE(same_as(chunks.output.array, whole.output.array)) << threads << " threads";
  }
}

TEST(AttentionBits, AQueryHasThemInAWholeSequenceAChunkAndAlone) {
  for (runtime::Isa isa : attention_isas()) {
    const runtime::ScopedIsa scope(isa);
    for (Format format : {Format::kFp32, Format::kBf16, Format::kFp16}) {
      for (int64_t channels : {33, 48, 64}) {
        for (int64_t window : {0, 50}) {
          for (bool codes : {false, true}) {
            const AttentionCase c = {.shape = {.batch = 2,
                                               .heads = 6,
                                               .groups = 2,
                                               .queries = 150,
                                               .keys = 150,
                                               .channels = channels,
                                               .value_channels = channels},
                                     .format = format,
                                     .causal = Causal::kBottomRight,
                                     .window = window,
                                     .codes = codes};
            SCOPED_TRACE(std::string(runtime::name(isa)) + ": " + describe(c));
            expect_chunks_have_the_bits_of_the_whole(AttentionProblem(c));
          }
        }
      }
    }
  }
}

TEST(AttentionBits, OfLongSequencesToo) {
  for (runtime::Isa isa : attention_isas()) {
    const runtime::ScopedIsa scope(isa);
    for (Format format : {Format::kFp32, Format::kBf16}) {
      for (int64_t window : {0, 700}) {
        // Several parts of few queries' keys; a group whose rows are no multiple of a tile.
        AttentionCase c = {.format = format, .causal = Causal::kBottomRight, .window = window, .deviation = 3.0f};
        c.shape = {
            .batch = 1, .heads = 5, .groups = 1, .queries = 1200, .keys = 1200, .channels = 64, .value_channels = 96};
        SCOPED_TRACE(std::string(runtime::name(isa)) + ": " + describe(c));
        expect_chunks_have_the_bits_of_the_whole(AttentionProblem(c));
      }
    }
  }
}

// Sums below the smallest normal number, which TDPBF16PS and VDPBF16PS leave as zero, of either sign.
TEST(AttentionBits, OfSubnormalSumsToo) {
  for (runtime::Isa isa : attention_isas()) {
    const runtime::ScopedIsa scope(isa);
    for (float deviation : {1.0f, 0x1p-64f}) {
      AttentionCase c = {.format = Format::kBf16, .causal = Causal::kBottomRight, .deviation = deviation};
      c.shape = {
          .batch = 1, .heads = 4, .groups = 2, .queries = 150, .keys = 150, .channels = 64, .value_channels = 64};
      SCOPED_TRACE(std::string(runtime::name(isa)) + ": " + describe(c));
      AttentionProblem problem(c);
      problem.v.fill(9, 0x1p-126f);
      expect_chunks_have_the_bits_of_the_whole(problem, same_values);
    }
  }
}

TEST(AttentionBits, AWindowOfAllKeysHasThoseOfNone) {
  for (runtime::Isa isa : attention_isas()) {
    const runtime::ScopedIsa scope(isa);
    for (AttentionCase c : cases()) {
      SCOPED_TRACE(describe(c));
      AttentionCase whole = c;
      c.window = c.shape.keys;
      whole.window = 0;
      AttentionResult of_window(c), of_all(whole);
      run(AttentionProblem(c), of_window);
      run(AttentionProblem(whole), of_all);
      EXPECT_TRUE(same(of_window.output.array, of_all.output.array));
      EXPECT_TRUE(same(of_window.grad_q.array, of_all.grad_q.array));
      EXPECT_TRUE(same(of_window.grad_k.array, of_all.grad_k.array));
      EXPECT_TRUE(same(of_window.grad_v.array, of_all.grad_v.array));
    }
  }
}

TEST(AttentionBits, DropoutFollowsSeedAndOffset) {
  AttentionCase c = {.dropout = 0.5f};
  const AttentionProblem problem(c);
  const auto output_of = [&](uint64_t seed, uint64_t offset) {
    AttentionResult result(c);
    AttentionForward args = {.shape = c.shape,
                             .rules = problem.rules(),
                             .q = problem.q.input(),
                             .k = problem.k.input(),
                             .v = problem.v.input(),
                             .output = result.output.output()};
    args.rules.dropout = {.probability = c.dropout, .seed = seed, .offset = offset};
    attention_forward(args);
    return result.output.array;
  };
  const Array first = output_of(1, 2);
  EXPECT_TRUE(same(first, output_of(1, 2)));
  EXPECT_FALSE(same(first, output_of(1, 3)));
  EXPECT_FALSE(same(first, output_of(2, 2)));
}

}  // namespace
}  // namespace plimsoll::kernels
