// Kernels of embedding.cu against those of embedding_cpu.cpp: the same codes of every number; any NaN counts as any other.
#include <algorithm>
#include <limits>
#include <numeric>
#include <random>

#include "plimsoll/kernels/embedding/embedding_launch.h"
#include "tests/ptx/array_testing.h"

namespace plimsoll::ptx::testing::embedding_ptx_test {
namespace {

using kernels::EmbeddingBackward;
using kernels::EmbeddingForward;
using kernels::EmbeddingShape;
using kernels::SortedTokens;
using kernels::testing::Array;
using kernels::testing::sample;

constexpr Format kWide[] = {Format::kFp32, Format::kBf16, Format::kFp16};
constexpr float kInfinity = std::numeric_limits<float>::infinity();

struct Case {
  EmbeddingShape shape = {3, 7, 37};
  int64_t vocabulary = 11;
  Format weight = Format::kFp32, values = Format::kFp32;
  bool positions = true;
  size_t offset = 0;     // bytes from an aligned address to each array of values
  bool outside = false;  // every fifth token is no row of the table
  int64_t repeated = 2;  // of so many places all but one hold token 0
  float worst = 0.0f;    // in the middle of the values, unless 0

  int64_t places() const { return shape.batch * shape.seq; }
  int64_t count() const { return places() * shape.dim; }
};

std::string describe(const Case& c) {
  return std::to_string(c.shape.batch) + " x " + std::to_string(c.shape.seq) + " x " + std::to_string(c.shape.dim) +
         " of " + std::to_string(c.vocabulary) + ", weights " + name_of(c.weight) + ", values " + name_of(c.values) +
         ", " + std::to_string(c.offset) + " bytes off" + (c.outside ? ", tokens outside" : "");
}

bool is_inside(const Case& c, int64_t token) { return token >= 0 && token < c.vocabulary; }

std::vector<int64_t> tokens_of(const Case& c) {
  constexpr int64_t kFar = std::numeric_limits<int64_t>::max();
  const int64_t outside[] = {-1, c.vocabulary, kFar, -kFar};
  std::mt19937 random(5);
  std::vector<int64_t> tokens;
  for (int64_t i = 0; i < c.places(); ++i) {
    const auto token = static_cast<int64_t>(random() % static_cast<uint64_t>(c.vocabulary));
    tokens.push_back(c.outside && i % 5 == 1 ? outside[i / 5 % 4] : i % c.repeated == 0 ? token : 0);
  }
  return tokens;
}

// `values` with the worst of the case among them.
Array array_of(const Case& c, Format format, int64_t count, unsigned seed) {
  Array result(format, sample(count, seed));
  if (c.worst != 0) result.set(count / 2, c.worst);
  return result;
}

uint64_t add_at(Memory& memory, const char* name, const Array& array, Format format, size_t offset) {
  return memory.add(name, array.data(), static_cast<size_t>(array.count() * format::bytes(format)), offset);
}
uint64_t add_numbers(Memory& memory, const char* name, const std::vector<int64_t>& numbers) {
  return memory.add(name, numbers.data(), numbers.size() * sizeof(int64_t));
}

void check_forward(const Module& module, const Case& c) {
  const auto [batch, seq, dim] = c.shape;
  std::vector<int64_t> tokens = tokens_of(c), known = tokens;
  for (int64_t& token : known) token = is_inside(c, token) ? token : 0;
  const Array weight = array_of(c, c.weight, c.vocabulary * dim, 1), positions = array_of(c, c.weight, seq * dim, 2);
  Array wanted(c.values, c.count());
  EmbeddingForward args{.shape = c.shape,
                        .tokens = known.data(),
                        .vocabulary = c.vocabulary,
                        .token_weight = weight.data(),
                        .position_weight = c.positions ? positions.data() : nullptr,
                        .weight_format = c.weight,
                        .output = wanted.data(),
                        .output_format = c.values};
  kernels::embedding_forward(args);
  for (int64_t i = 0; i < wanted.count(); ++i) {
    if (!is_inside(c, tokens[static_cast<size_t>(i / dim)])) wanted.set(i, std::numeric_limits<float>::quiet_NaN());
  }

  Memory memory;
  args.tokens = pointer<int64_t>(add_numbers(memory, "tokens", tokens));
  args.token_weight = pointer<void>(add_at(memory, "token_weight", weight, c.weight, c.offset));
  if (c.positions)
    args.position_weight = pointer<void>(add_at(memory, "position_weight", positions, c.weight, c.offset));
  const auto bytes = static_cast<size_t>(c.count() * format::bytes(c.values));
  args.output = pointer<void>(memory.add_unwritten("output", bytes, c.offset));
  launch(module.kernel("embedding_forward_" + name_of(c.weight) + "_" + name_of(c.values)), memory,
         kernels::embedding_forward_launch(args, kMultiprocessors), args);
  expect_same({c.places(), dim, dim, c.values}, memory.data(address(args.output)), wanted.data(), /*exact=*/false,
              describe(c));
}

// Tokens in ascending order and their places, as a stable sort gives them.
struct Sorted {
  std::vector<int64_t> tokens, places;
  explicit Sorted(const std::vector<int64_t>& unsorted) : places(unsorted.size()) {
    std::iota(places.begin(), places.end(), 0);
    const auto token_at = [&](int64_t place) { return unsorted[static_cast<size_t>(place)]; };
    std::ranges::stable_sort(places, {}, token_at);
    for (const int64_t place : places) tokens.push_back(token_at(place));
  }
};

void check_backward(const Module& module, const Case& c) {
  const auto [batch, seq, dim] = c.shape;
  const std::vector<int64_t> tokens = tokens_of(c);
  const Array grad = array_of(c, c.values, c.count(), 3);
  // Tokens outside have a row behind the table.
  std::vector<int64_t> known = tokens;
  for (int64_t& token : known) token = is_inside(c, token) ? token : c.vocabulary;
  Array wanted(c.weight, (c.vocabulary + 1) * dim), wanted_positions(c.weight, seq * dim);
  EmbeddingBackward args{.shape = c.shape,
                         .tokens = known.data(),
                         .grad = grad.data(),
                         .grad_format = c.values,
                         .vocabulary = c.vocabulary + 1,
                         .token_grad = wanted.data(),
                         .position_grad = wanted_positions.data(),
                         .weight_format = c.weight};
  kernels::embedding_backward(args);

  Memory memory;
  const Sorted sorted(tokens);
  const SortedTokens on_device{pointer<int64_t>(add_numbers(memory, "sorted", sorted.tokens)),
                               pointer<int64_t>(add_numbers(memory, "places", sorted.places))};
  args.tokens = nullptr;
  args.vocabulary = c.vocabulary;
  args.grad = pointer<void>(add_at(memory, "grad", grad, c.values, c.offset));
  const auto row_bytes = static_cast<size_t>(dim * format::bytes(c.weight));
  const std::vector<uint8_t> zeros(static_cast<size_t>(c.vocabulary) * row_bytes);
  args.token_grad = pointer<void>(memory.add("token_grad", zeros.data(), zeros.size(), c.offset, /*read_only=*/false));
  args.position_grad =
      pointer<void>(memory.add_unwritten("position_grad", static_cast<size_t>(seq) * row_bytes, c.offset));
  const std::string name = "embedding_backward_" + name_of(c.values) + "_" + name_of(c.weight);
  for (const SortedTokens& by : {on_device, SortedTokens{}}) {
    launch(module.kernel(name), memory, kernels::embedding_backward_launch(args, by, kMultiprocessors), args, by);
  }
  const auto expect = [&](void* got, const Array& rows_wanted, int64_t rows, const char* what) {
    expect_same({rows, dim, dim, c.weight}, memory.data(address(got)), rows_wanted.data(), /*exact=*/false,
                describe(c) + ": " + what);
  };
  expect(args.token_grad, wanted, c.vocabulary, "gradient of tokens");
  expect(args.position_grad, wanted_positions, seq, "gradient of positions");
}

using Check = void (*)(const Module& module, const Case& c);

// Widths around a thread's run and a block's, rows of which a block takes one or many, aligned and not.
void check_shapes(const Module& module, Check check) {
  constexpr EmbeddingShape kShapes[] = {{0, 3, 5},  {2, 0, 5},  {2, 3, 0},   {1, 1, 1},    {2, 3, 15},   {3, 2, 16},
                                        {2, 9, 17}, {4, 5, 64}, {5, 31, 13}, {1, 3, 1030}, {2, 2, 2056}, {2, 1, 2060}};
  for (const Format weight : kWide) {
    for (const Format values : kWide) {
      for (const EmbeddingShape& shape : kShapes) {
        check(module, {.shape = shape, .weight = weight, .values = values, .positions = shape.dim % 2 == 1});
      }
      for (const size_t offset : {4u, 8u}) {
        check(module, {.shape = {3, 4, 64}, .weight = weight, .values = values, .offset = offset});
      }
      if (::testing::Test::HasFatalFailure()) return;
    }
  }
}

TEST(PtxEmbeddingForward, HasTheBytesOfTheCpuKernel) {
  PLIMSOLL_MODULE("embedding");
  check_shapes(module, check_forward);
}

TEST(PtxEmbeddingForward, HasTheBytesOfTheCpuKernelOnAHundredThousandElements) {
  PLIMSOLL_MODULE("embedding");
  check_forward(module, {.shape = {4, 25, 1000}, .vocabulary = 60, .weight = Format::kBf16, .values = Format::kBf16});
}

TEST(PtxEmbeddingForward, GivesNanWhereTheTableHasNoRow) {
  PLIMSOLL_MODULE("embedding");
  for (const Format weight : kWide) {
    for (const bool positions : {false, true}) {
      check_forward(module, {.weight = weight, .values = Format::kBf16, .positions = positions, .outside = true});
      check_forward(module, {.shape = {3, 7, 40}, .weight = weight, .positions = positions, .outside = true});
    }
  }
}

TEST(PtxEmbeddingBackward, HasTheBytesOfTheCpuKernel) {
  PLIMSOLL_MODULE("embedding");
  check_shapes(module, check_backward);
}

TEST(PtxEmbeddingBackward, AddsThousandsOfPlacesInTheirOrder) {
  PLIMSOLL_MODULE("embedding");
  for (const int64_t dim : {3, 12}) {
    check_backward(module, {.shape = {5, 613, dim}, .vocabulary = 7, .repeated = 2000});
    check_backward(module, {.shape = {2900, 1, dim}, .vocabulary = 500, .values = Format::kBf16, .repeated = 3});
  }
}

TEST(PtxEmbeddingBackward, HasTheBytesOfTheCpuKernelOnAHundredThousandElements) {
  PLIMSOLL_MODULE("embedding");
  check_backward(module, {.shape = {8, 24, 516}, .vocabulary = 150, .weight = Format::kBf16, .values = Format::kBf16});
}

TEST(PtxEmbeddingBackward, LeavesOutTokensThatTheTableLacks) {
  PLIMSOLL_MODULE("embedding");
  for (const Format values : kWide) {
    check_backward(module, {.values = values, .outside = true});
    check_backward(module, {.shape = {9, 11, 40}, .weight = Format::kFp16, .values = values, .outside = true});
  }
}

TEST(PtxEmbedding, ShowsWhatIsNotFinite) {
  PLIMSOLL_MODULE("embedding");
  for (const float worst : {kInfinity, -kInfinity, std::numeric_limits<float>::quiet_NaN(), 3e38f}) {
    for (const Format format : kWide) {
      for (const Format other : kWide) {
        const Case c{.shape = {3, 7, 40}, .weight = format, .values = other, .worst = worst};
        check_forward(module, c);
        check_backward(module, c);
      }
    }
  }
}

}  // namespace
}  // namespace plimsoll::ptx::testing::embedding_ptx_test
