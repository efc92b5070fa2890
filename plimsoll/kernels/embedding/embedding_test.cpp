#include "plimsoll/kernels/embedding/embedding.h"

#include <gtest/gtest.h>

#include <limits>
#include <optional>
#include <string>

#include "plimsoll/kernels/testing.h"

namespace plimsoll::kernels {
namespace {

using namespace testing;

constexpr std::array kFormats = {Format::kFp32, Format::kBf16, Format::kFp16};

struct Case {
  EmbeddingShape shape = {3, 7, 37};
  int64_t vocabulary = 11;
  Format weight = Format::kFp32, values = Format::kFp32;
  bool positions = true;

  int64_t places() const { return shape.batch * shape.seq; }
  int64_t count() const { return places() * shape.dim; }
};

std::string describe(const Case& c) {
  return std::to_string(c.shape.batch) + " x " + std::to_string(c.shape.seq) + " x " + std::to_string(c.shape.dim) +
         " of " + std::to_string(c.vocabulary) + ", " + std::string(format::info(c.weight).name) + " and " +
         std::string(format::info(c.values).name);
}

// Half of the places hold token 0; odd tokens above 4 do not occur.
std::vector<int64_t> tokens_of(const Case& c) {
  std::mt19937 random(5);
  std::vector<int64_t> tokens;
  for (int64_t i = 0; i < c.places(); ++i) {
    const auto token = static_cast<int64_t>(random() % static_cast<uint64_t>(c.vocabulary));
    tokens.push_back(random() % 2 == 0 ? 0 : token > 4 ? token / 2 * 2 : token);
  }
  return tokens;
}

template <class Check>
void for_cases(Check check) {
  for (runtime::Isa isa : isas_present()) {
    const runtime::ScopedIsa scope(isa);
    SCOPED_TRACE(std::string(runtime::name(isa)));
    for (const EmbeddingShape& shape :
         {EmbeddingShape{1, 1, 1}, EmbeddingShape{2, 3, 15}, EmbeddingShape{3, 2, 16}, EmbeddingShape{2, 9, 17},
          EmbeddingShape{4, 5, 64}, EmbeddingShape{5, 31, 133}}) {
      for (Format weight : kFormats) {
        for (Format values : kFormats) {
          const Case c{.shape = shape, .weight = weight, .values = values, .positions = shape.dim != 16};
          SCOPED_TRACE(describe(c));
          check(c);
        }
      }
    }
  }
}

TEST(EmbeddingForward, IsTheSumRoundedOnce) {
  for_cases([](const Case& c) {
    const std::vector<int64_t> tokens = tokens_of(c);
    const int64_t dim = c.shape.dim;
    const Array token_weight(c.weight, sample(c.vocabulary * dim, 1)),
        positions(c.weight, sample(c.shape.seq * dim, 2));
    Array output(c.values, c.count());
    embedding_forward({.shape = c.shape,
                       .tokens = tokens.data(),
                       .token_weight = token_weight.data(),
                       .position_weight = c.positions ? positions.data() : nullptr,
                       .weight_format = c.weight,
                       .output = output.data(),
                       .output_format = c.values});
    EXPECT_TRUE(output.guards_intact());
    for (int64_t i = 0; i < c.count(); ++i) {
      const int64_t place = i / dim, column = i % dim;
      float exact = token_weight.at(tokens[static_cast<size_t>(place)] * dim + column);
      if (c.positions) exact += positions.at(place % c.shape.seq * dim + column);
      ASSERT_EQ(output.code(i), format::encode(c.values, exact)) << i;
    }
  });
}

struct Gradients {
  Array token, position;
};

Gradients backward(const Case& c, const Array& grad) {
  Gradients result{Array(c.weight, c.vocabulary * c.shape.dim), Array(c.weight, c.shape.seq * c.shape.dim)};
  const std::vector<int64_t> tokens = tokens_of(c);
  embedding_backward({.shape = c.shape,
                      .tokens = tokens.data(),
                      .grad = grad.data(),
                      .grad_format = c.values,
                      .vocabulary = c.vocabulary,
                      .token_grad = result.token.data(),
                      .position_grad = c.positions ? result.position.data() : nullptr,
                      .weight_format = c.weight});
  EXPECT_TRUE(result.token.guards_intact() && result.position.guards_intact());
  return result;
}

// One vector's gradient is the sum over `places` in double, within n roundings of FP32 and one to the format.
void expect_sum(const Case& c, const Array& grad, const std::vector<int64_t>& places, const Array& got, int64_t row) {
  for (int64_t column = 0; column < c.shape.dim; ++column) {
    double exact = 0, magnitude = 0;
    for (int64_t place : places) {
      const auto value = static_cast<double>(grad.at(place * c.shape.dim + column));
      exact += value;
      magnitude += std::abs(value);
    }
    const format::FormatInfo& info = format::info(c.weight);
    double bound = gamma(static_cast<double>(places.size())) * magnitude;
    if (c.weight != Format::kFp32) {
      bound += (std::abs(exact) + bound) * std::ldexp(1.0, -info.mantissa_bits - 1) + info.min_subnormal / 2;
    }
    ASSERT_NEAR(got.at(row * c.shape.dim + column), exact, bound) << row << ", " << column;
  }
}

TEST(EmbeddingBackward, IsWithinTheBoundOfDoubleAndZeroForTokensThatDoNotOccur) {
  for_cases([](const Case& c) {
    const Array grad(c.values, sample(c.count(), 3));
    const Gradients result = backward(c, grad);
    const std::vector<int64_t> tokens = tokens_of(c);
    for (int64_t token = 0; token < c.vocabulary; ++token) {
      std::vector<int64_t> places;
      for (int64_t i = 0; i < c.places(); ++i) {
        if (tokens[static_cast<size_t>(i)] == token) places.push_back(i);
      }
      expect_sum(c, grad, places, result.token, token);
      for (int64_t i = 0; i < c.shape.dim && places.empty(); ++i) {
        ASSERT_EQ(result.token.code(token * c.shape.dim + i), 0u);
      }
    }
    for (int64_t position = 0; position < c.shape.seq && c.positions; ++position) {
      std::vector<int64_t> places;
      for (int64_t batch = 0; batch < c.shape.batch; ++batch) places.push_back(batch * c.shape.seq + position);
      expect_sum(c, grad, places, result.position, position);
    }
  });
}

TEST(EmbeddingBackward, ANonFiniteGradientReachesItsTokenAndPositionAndNoOther) {
  for (runtime::Isa isa : isas_present()) {
    const runtime::ScopedIsa scope(isa);
    const Case c;
    Array grad(c.values, sample(c.count(), 3));
    const Gradients clean = backward(c, grad);
    const int64_t place = 8, column = 36;
    grad.set(place * c.shape.dim + column, std::numeric_limits<float>::quiet_NaN());
    const Gradients result = backward(c, grad);
    const int64_t token = tokens_of(c)[static_cast<size_t>(place)];
    for (int64_t i = 0; i < clean.token.count(); ++i) {
      ASSERT_TRUE(i == token * c.shape.dim + column ? std::isnan(result.token.at(i))
                                                    : same(result.token, clean.token, i));
    }
    for (int64_t i = 0; i < clean.position.count(); ++i) {
      ASSERT_TRUE(i == place % c.shape.seq * c.shape.dim + column ? std::isnan(result.position.at(i))
                                                                  : same(result.position, clean.position, i));
    }
  }
}

TEST(Embedding, GivesTheSameBitsOnEveryIsaAndThreadCount) {
  const Case c{.shape = {16, 33, 165}, .vocabulary = 3001, .values = Format::kBf16};
  const Array grad(c.values, sample(c.count(), 3));
  std::optional<Gradients> first;
  for (runtime::Isa isa : isas_present()) {
    for (int threads : {1, 2, 3, 7}) {
      const runtime::ScopedIsa scope(isa);
      const ScopedThreads team(threads);
      const Gradients result = backward(c, grad);
      if (!first) first = result;
      EXPECT_TRUE(same(result.token, first->token) && same(result.position, first->position))
          << runtime::name(isa) << " " << threads;
    }
  }
}

TEST(Embedding, WorksOnNothing) {
  for (const EmbeddingShape& shape : {EmbeddingShape{0, 3, 5}, EmbeddingShape{2, 0, 5}, EmbeddingShape{2, 3, 0}}) {
    const Case c{.shape = shape};
    const Array grad(c.values, 0);
    const Gradients result = backward(c, grad);
    for (int64_t i = 0; i < result.token.count(); ++i) ASSERT_EQ(result.token.code(i), 0u);
    for (int64_t i = 0; i < result.position.count(); ++i) ASSERT_EQ(result.position.code(i), 0u);
    Array output(c.values, c.count());
    const Array weight(c.weight, c.vocabulary * shape.dim);
    const std::vector<int64_t> tokens = tokens_of(c);
    embedding_forward(
        {.shape = shape, .tokens = tokens.data(), .token_weight = weight.data(), .output = output.data()});
    EXPECT_TRUE(output.guards_intact());
  }
}

}  // namespace
}  // namespace plimsoll::kernels
