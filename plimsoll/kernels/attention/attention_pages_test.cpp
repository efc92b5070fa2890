// Keys and values in pages: the bits of the same keys and values in a row.
#include <gtest/gtest.h>

#include <limits>
#include <numeric>
#include <random>

#include "plimsoll/kernels/attention/attention_test_support.h"

namespace plimsoll::kernels {
namespace {

using namespace testing;

constexpr int64_t kSpare = 3;  // pages that no text has

// [pages, groups, rows, channels] of keys or values, in an order drawn at random; NaN where there is no key.
struct Pool {
  Array elements;
  std::vector<float> scale;  // [pages, groups, rows]
  AttentionInput input;
  AttentionScale scales = {};

  Pool(Format format, const AttentionShape& shape, int64_t channels, int64_t pages, int64_t rows)
      : elements(format, pages * shape.groups * rows * channels),
        scale(static_cast<size_t>(pages * shape.groups * rows), std::numeric_limits<float>::quiet_NaN()),
        input{elements.data(), shape.groups * rows * channels, rows * channels, channels} {
    if (format == Format::kE4m3) scales = {scale.data(), shape.groups * rows, rows, 1};
  }
};

class Paged {
 public:
  Paged(const AttentionProblem& problem, int64_t rows)
      : problem_(problem),
        rows_(rows),
        of_text_((problem.c.shape.keys + rows - 1) / rows),
        order_(static_cast<size_t>(problem.c.shape.batch * of_text_ + kSpare)),
        k_(problem.c.codes ? Format::kE4m3 : problem.c.format, problem.c.shape, problem.c.shape.channels,
           std::ssize(order_), rows),
        v_(problem.c.codes ? Format::kE4m3 : problem.c.format, problem.c.shape, problem.c.shape.value_channels,
           std::ssize(order_), rows) {
    std::iota(order_.begin(), order_.end(), 0);
    std::shuffle(order_.begin(), order_.end(), std::mt19937(9));
    for (int64_t b = 0; b < problem.c.shape.batch; ++b) numbers_.push_back(order_.data() + b * of_text_);
    fill(problem.k, problem.k_scale, k_);
    fill(problem.v, problem.v_scale, v_);
  }

  void run(AttentionResult& result) const {
    AttentionForward args = forward_args(problem_, result);
    args.k = k_.input;
    args.v = v_.input;
    args.k_scale = k_.scales;
    args.v_scale = v_.scales;
    args.pages = {numbers_.data(), rows_};
    attention_forward(args);
  }

 private:
  void fill(const HeadsArray& from, const std::vector<float>& scale, Pool& pool) const {
    const AttentionShape& s = problem_.c.shape;
    const int64_t channels = pool.input.row_stride;
    for (int64_t b = 0; b < s.batch; ++b) {
      const int64_t there = problem_.lengths.empty() ? s.keys : problem_.lengths[static_cast<size_t>(b)];
      for (int64_t group = 0; group < s.groups; ++group) {
        for (int64_t key = 0; key < std::min(there, s.keys); ++key) {
          const int64_t row = (numbers_[static_cast<size_t>(b)][key / rows_] * s.groups + group) * rows_ + key % rows_;
          for (int64_t c = 0; c < channels; ++c)
            pool.elements.set(row * channels + c, from.array.at(from.index(b, group, key, c)));
          if (scale.empty()) continue;
          pool.scale[static_cast<size_t>(row)] = scale[static_cast<size_t>((b * s.groups + group) * s.keys + key)];
        }
      }
    }
  }

  const AttentionProblem& problem_;
  const int64_t rows_, of_text_;
  std::vector<int32_t> order_;
  std::vector<const int32_t*> numbers_;
  Pool k_, v_;
};

void expect_bits_of_a_row(const AttentionProblem& problem) {
  AttentionResult expected(problem.c);
  run_forward(problem, expected);
  for (const int64_t rows : {16, 32, 256}) {
    const Paged pages(problem, rows);
    for (const int threads : {1, 3}) {
      const ScopedThreads team(threads);
      AttentionResult result(problem.c);
      pages.run(result);
      EXPECT_TRUE(same(result.output.array, expected.output.array)) << rows << " rows, " << threads << " threads";
      EXPECT_TRUE(same(result.lse, expected.lse)) << rows << " rows, " << threads << " threads";
    }
  }
}

AttentionCase case_of(int64_t queries, int64_t channels, Format format, bool codes) {
  AttentionCase c = {.format = format, .causal = Causal::kBottomRight, .codes = codes};
  c.shape = {.batch = 3,
             .heads = 6,
             .groups = 2,
             .queries = queries,
             .keys = 200,
             .channels = channels,
             .value_channels = channels};
  return c;
}

TEST(AttentionPages, GiveTheBitsOfKeysInARow) {
  on_every_isa([] {
    for (const Format format : {Format::kFp32, Format::kBf16}) {
      for (const bool codes : {false, true}) {
        for (const int64_t channels : {33, 64}) {
          for (const int64_t queries : {1, 3, 70}) {
            AttentionCase c = case_of(queries, channels, format, codes);
            for (const int64_t window : {0, 50}) {
              c.window = window;
              SCOPED_TRACE(describe(c));
              AttentionProblem problem(c);
              if (queries == 1) problem.lengths = {77, 1, 200};
              expect_bits_of_a_row(problem);
            }
            c.bias = Extent::kFull;
            SCOPED_TRACE(describe(c));
            expect_bits_of_a_row(AttentionProblem(c));
          }
        }
      }
    }
  });
}

TEST(AttentionPages, ReadAValueThatIsNotFiniteAsARowDoes) {
  on_every_isa([] {
    for (const bool codes : {false, true}) {
      for (const int64_t queries : {1, 9}) {
        AttentionCase c = case_of(queries, 64, Format::kBf16, codes);
        c.window = 90;
        SCOPED_TRACE(describe(c));
        AttentionProblem problem(c);
        for (const int64_t key : {3, 108, 120, 150}) {
          problem.v.array.set(problem.v.index(1, 0, key, 5), std::numeric_limits<float>::quiet_NaN());
        }
        expect_bits_of_a_row(problem);
      }
    }
  });
}

TEST(AttentionPages, GiveARequestTheBitsThatItHasAlone) {
  on_every_isa([] {
    for (const bool codes : {false, true}) {
      AttentionCase c = case_of(1, 64, Format::kBf16, codes);
      c.shape.batch = 9;
      c.shape.keys = 1100;
      c.deviation = 3.0f;
      AttentionProblem problem(c);
      problem.lengths = {1100, 5, 600, 1, 33, 1024, 700, 64, 0};
      const Paged pages(problem, 32);
      for (const int threads : {1, 2, 3}) {
        const ScopedThreads team(threads);
        AttentionResult together(c);
        pages.run(together);
        for (int64_t b = 0; b < c.shape.batch; ++b) {
          AttentionResult alone(c);
          AttentionForward args = forward_args(problem, alone);
          const auto text = [&](auto& tensor, int64_t bytes) {
            using Byte =
                std::conditional_t<std::is_const_v<std::remove_pointer_t<decltype(tensor.data)>>, const char, char>;
            tensor.data = static_cast<Byte*>(tensor.data) + b * tensor.batch_stride * bytes;
          };
          text(args.q, format::bytes(args.format));
          text(args.output, format::bytes(args.format));
          text(args.k, format::bytes(args.cache_format));
          text(args.v, format::bytes(args.cache_format));
          for (AttentionScale* scale : {&args.k_scale, &args.v_scale}) scale->data += b * scale->batch_stride;
          args.shape.batch = 1;
          args.shape.keys = problem.lengths[static_cast<size_t>(b)];
          args.rules.key_lengths = nullptr;
          args.lse = nullptr;
          attention_forward(args);
          for (int64_t h = 0; h < c.shape.heads; ++h) {
            for (int64_t channel = 0; channel < c.shape.channels; ++channel) {
              const int64_t place = together.output.index(b, h, 0, channel);
              ASSERT_TRUE(same(together.output.array, alone.output.array, place))
                  << "request " << b << ", " << threads << " threads";
            }
          }
        }
      }
    }
  });
}

}  // namespace
}  // namespace plimsoll::kernels
