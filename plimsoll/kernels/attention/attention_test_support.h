// Problems for the tests of attention, and the answers in double with the error that the kernel may have.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "plimsoll/kernels/attention/attention.h"
#include "plimsoll/kernels/testing.h"

namespace plimsoll::kernels::testing {

// Dimensions of the mask or bias [batch, heads, queries, keys] that are broadcast.
enum class Extent { kNone, kFull, kOverBatch, kOverHeadsAndQueries };

struct AttentionCase {
  AttentionShape shape = {
      .batch = 2, .heads = 4, .groups = 2, .queries = 37, .keys = 45, .channels = 24, .value_channels = 24};
  Format format = Format::kFp32;
  Causal causal = Causal::kNone;
  int64_t window = 0;
  bool key_lengths = false;
  bool codes = false;  // k and v as E4M3 with a scale per key; forward alone
  Extent mask = Extent::kNone;
  Extent bias = Extent::kNone;
  Format bias_format = Format::kFp32;
  float dropout = 0.0f;
  float deviation = 1.0f;  // of q and k
};
std::string describe(const AttentionCase& c);

// A tensor [batch, heads, rows, channels] that lies as [batch, rows, heads, channels] with a gap after each row.
class HeadsArray {
 public:
  HeadsArray(Format format, int64_t batch, int64_t heads, int64_t rows, int64_t channels);
  int64_t index(int64_t b, int64_t h, int64_t row, int64_t c) const {
    return b * batch_stride_ + row * row_stride_ + h * channels_ + c;
  }
  double at(int64_t b, int64_t h, int64_t row, int64_t c) const {
    return static_cast<double>(array.at(index(b, h, row, c)));
  }
  void fill(unsigned seed, float deviation);
  AttentionInput input() const { return {array.data(), batch_stride_, channels_, row_stride_}; }
  AttentionOutput output() { return {array.data(), batch_stride_, channels_, row_stride_}; }

 private:
  int64_t channels_, row_stride_, batch_stride_;

 public:
  Array array;
};

struct AttentionProblem {
  explicit AttentionProblem(const AttentionCase& c);
  AttentionCase c;
  HeadsArray q, k, v, grad;
  std::vector<float> k_scale, v_scale;  // [batch, groups, keys]
  std::vector<int64_t> lengths;
  std::vector<uint8_t> mask;
  AttentionMatrixStrides mask_strides, bias_strides;
  Array bias;
  AttentionRules rules() const;
  bool visible(int64_t b, int64_t h, int64_t i, int64_t j) const;
};

struct AttentionResult {
  explicit AttentionResult(const AttentionCase& c);
  HeadsArray output, grad_q, grad_k, grad_v;
  Array lse, grad_bias;
};
AttentionForward forward_args(const AttentionProblem& problem, AttentionResult& result);
void run_forward(const AttentionProblem& problem, AttentionResult& result);
void run_backward(const AttentionProblem& problem, AttentionResult& result,
                  const AttentionGradientFactors& factors = {});

// Values and bounds in the order of a HeadsArray's index(); lse [batch, heads, queries].
struct ExactTensor {
  std::vector<double> value, bound;    // value is NaN in gaps
  std::vector<double> magnitude = {};  // sum of absolute terms
};
struct ExactAttention {
  ExactTensor output, lse, grad_q, grad_k, grad_v, grad_bias;
};
// pairs: bounds of the kernel that rounds weights to BF16.
ExactAttention exact_attention(const AttentionProblem& problem, bool pairs);

// Whether every element is within its bound of the exact value; a non-finite one never is.
bool within(const Array& got, const ExactTensor& exact, std::string* fault = nullptr);

// portable, AVX2, AVX-512, AVX-512 BF16 and AMX, as far as present.
std::vector<runtime::Isa> attention_isas();
bool multiplies_pairs(const AttentionCase& c);  // at the current ISA

// Two heads of one group.
inline AttentionShape shape_of(int64_t queries, int64_t keys, int64_t channels) {
  return {.batch = 1,
          .heads = 2,
          .groups = 1,
          .queries = queries,
          .keys = keys,
          .channels = channels,
          .value_channels = channels};
}

template <class Check>
void on_every_isa(Check check) {
  for (runtime::Isa isa : attention_isas()) {
    const runtime::ScopedIsa scope(isa);
    SCOPED_TRACE(std::string(runtime::name(isa)));
    check();
  }
}

}  // namespace plimsoll::kernels::testing
