#include "plimsoll/kernels/attention/attention_test_support.h"

#include "plimsoll/runtime/philox.h"

namespace plimsoll::kernels::testing {
namespace {

constexpr int64_t kGap = 3;
constexpr AttentionDropout kDropout = {.probability = 0.0f, .seed = 0x123456789abcdefu, .offset = 77};

Format cache_format(const AttentionCase& c) { return c.codes ? Format::kE4m3 : c.format; }

int64_t set_strides(Extent extent, const AttentionShape& s, AttentionMatrixStrides& strides) {
  if (extent == Extent::kNone) return 0;
  strides.key = 1;
  if (extent == Extent::kOverHeadsAndQueries) {
    strides.batch = s.keys;
    return s.batch * s.keys;
  }
  strides.query = s.keys;
  strides.head = s.queries * s.keys;
  if (extent == Extent::kOverBatch) return s.heads * strides.head;
  strides.batch = s.heads * strides.head;
  return s.batch * strides.batch;
}

int64_t place(const AttentionMatrixStrides& s, int64_t b, int64_t h, int64_t i, int64_t j) {
  return b * s.batch + h * s.head + i * s.query + j * s.key;
}

}  // namespace

std::string describe(const AttentionCase& c) {
  const AttentionShape& s = c.shape;
  std::string text = std::string(format::info(c.format).name);
  for (int64_t n : {s.batch, s.heads, s.groups, s.queries, s.keys, s.channels, s.value_channels}) {
    text.append(" ").append(std::to_string(n));
  }
  if (c.causal != Causal::kNone) text += c.causal == Causal::kTopLeft ? " causal" : " causal from the last key";
  if (c.window != 0) text.append(" window ").append(std::to_string(c.window));
  if (c.key_lengths) text += " lengths";
  if (c.codes) text += " codes";
  if (c.mask != Extent::kNone) text.append(" mask ").append(std::to_string(static_cast<int>(c.mask)));
  if (c.bias != Extent::kNone) text.append(" bias ").append(std::to_string(static_cast<int>(c.bias)));
  if (c.dropout > 0) text += " dropout";
  return text;
}

HeadsArray::HeadsArray(Format format, int64_t batch, int64_t heads, int64_t rows, int64_t channels)
    : channels_(channels),
      row_stride_(heads * channels + kGap),
      batch_stride_(rows * row_stride_),
      array(format, batch * batch_stride_) {}

void HeadsArray::fill(unsigned seed, float deviation) {
  const std::vector<float> values = sample(array.count(), seed, 0.0f, deviation);
  for (int64_t i = 0; i < array.count(); ++i) array.set(i, std::clamp(values[static_cast<size_t>(i)], -8.0f, 8.0f));
}

AttentionProblem::AttentionProblem(const AttentionCase& wanted)
    : c(wanted),
      q(c.format, c.shape.batch, c.shape.heads, c.shape.queries, c.shape.channels),
      k(cache_format(c), c.shape.batch, c.shape.groups, c.shape.keys, c.shape.channels),
      v(cache_format(c), c.shape.batch, c.shape.groups, c.shape.keys, c.shape.value_channels),
      grad(c.format, c.shape.batch, c.shape.heads, c.shape.queries, c.shape.value_channels),
      bias(c.bias_format, set_strides(c.bias, c.shape, bias_strides)) {
  q.fill(1, c.deviation);
  k.fill(2, c.deviation);
  v.fill(3, 1.0f);
  grad.fill(4, 1.0f);
  const AttentionShape& s = c.shape;
  std::mt19937 random(5);
  for (int64_t i = 0; c.codes && i < s.batch * s.groups * s.keys; ++i) {
    k_scale.push_back(0.5f + static_cast<float>(random() % 100) / 100);
    v_scale.push_back(0.25f + static_cast<float>(random() % 100) / 50);
  }
  for (int64_t b = 0; c.key_lengths && b < s.batch; ++b) lengths.push_back(b == 0 ? s.keys * 2 / 3 : s.keys + 5);
  mask.resize(static_cast<size_t>(set_strides(c.mask, s, mask_strides)));
  for (uint8_t& x : mask) x = random() % 3 == 0 ? 7 : 0;
  // The first query that the mask knows sees nothing.
  for (int64_t j = 0; !mask.empty() && j < s.keys; ++j) mask[static_cast<size_t>(j)] = 1;
  const std::vector<float> biases = sample(bias.count(), 6);
  for (int64_t i = 0; i < bias.count(); ++i) bias.set(i, std::clamp(biases[static_cast<size_t>(i)], -4.0f, 4.0f));
}

AttentionRules AttentionProblem::rules() const {
  AttentionRules rules = {.scale = 1.0f / std::sqrt(static_cast<float>(std::max<int64_t>(c.shape.channels, 1))),
                          .causal = c.causal,
                          .window = c.window,
                          .key_lengths = lengths.empty() ? nullptr : lengths.data(),
                          .mask = mask.empty() ? nullptr : mask.data(),
                          .mask_strides = mask_strides,
                          .bias = c.bias == Extent::kNone ? nullptr : bias.data(),
                          .bias_format = c.bias_format,
                          .bias_strides = bias_strides,
                          .dropout = kDropout};
  rules.dropout.probability = c.dropout;
  return rules;
}

bool AttentionProblem::visible(int64_t b, int64_t h, int64_t i, int64_t j) const {
  int64_t end = c.shape.keys;
  if (c.causal == Causal::kTopLeft) end = std::min(end, i + 1);
  if (c.causal == Causal::kBottomRight) end = i + 1 + c.shape.keys - c.shape.queries;
  if (!lengths.empty()) end = std::min(end, lengths[static_cast<size_t>(b)]);
  if (j >= end || (c.window > 0 && j < end - c.window)) return false;
  return mask.empty() || mask[static_cast<size_t>(place(mask_strides, b, h, i, j))] == 0;
}

AttentionResult::AttentionResult(const AttentionCase& c)
    : output(c.format, c.shape.batch, c.shape.heads, c.shape.queries, c.shape.value_channels),
      grad_q(c.format, c.shape.batch, c.shape.heads, c.shape.queries, c.shape.channels),
      grad_k(c.format, c.shape.batch, c.shape.groups, c.shape.keys, c.shape.channels),
      grad_v(c.format, c.shape.batch, c.shape.groups, c.shape.keys, c.shape.value_channels),
      lse(Format::kFp32, c.shape.batch * c.shape.heads * c.shape.queries),
      grad_bias(Format::kFp32, [&] {
        AttentionMatrixStrides strides;
        return set_strides(c.bias, c.shape, strides);
      }()) {
  for (int64_t i = 0; i < grad_bias.count(); ++i) grad_bias.set(i, 0.0f);
}

AttentionForward forward_args(const AttentionProblem& p, AttentionResult& result) {
  const AttentionShape& s = p.c.shape;
  const auto scale = [&](const std::vector<float>& values) {
    return values.empty() ? AttentionScale{} : AttentionScale{values.data(), s.groups * s.keys, s.keys, 1};
  };
  return {.shape = s,
          .rules = p.rules(),
          .format = p.c.format,
          .q = p.q.input(),
          .k = p.k.input(),
          .v = p.v.input(),
          .cache_format = cache_format(p.c),
          .k_scale = scale(p.k_scale),
          .v_scale = scale(p.v_scale),
          .output = result.output.output(),
          .lse = result.lse.floats()};
}

void run_forward(const AttentionProblem& p, AttentionResult& result) { attention_forward(forward_args(p, result)); }

void run_backward(const AttentionProblem& p, AttentionResult& result, const AttentionGradientFactors& factors) {
  attention_backward({.shape = p.c.shape,
                      .rules = p.rules(),
                      .format = p.c.format,
                      .q = p.q.input(),
                      .k = p.k.input(),
                      .v = p.v.input(),
                      .output = result.output.input(),
                      .grad_output = p.grad.input(),
                      .lse = result.lse.floats(),
                      .grad_q = result.grad_q.output(),
                      .grad_k = result.grad_k.output(),
                      .grad_v = result.grad_v.output(),
                      .factors = factors,
                      .grad_bias = p.c.bias == Extent::kNone ? nullptr : result.grad_bias.floats(),
                      .grad_bias_strides = p.bias_strides});
}

bool within(const Array& got, const ExactTensor& exact, std::string* fault) {
  for (int64_t i = 0; i < got.count(); ++i) {
    const size_t at = static_cast<size_t>(i);
    if (std::isnan(exact.value[at])) continue;  // a gap
    const double value = static_cast<double>(got.at(i));
    const bool good = value == exact.value[at] || std::abs(value - exact.value[at]) <= exact.bound[at];
    if (good) continue;
    if (fault != nullptr) {
      *fault = std::string("element ").append(std::to_string(i)) + ": expected " + std::to_string(exact.value[at]) +
               " within " + std::to_string(exact.bound[at]) + ", got " + std::to_string(value);
    }
    return false;
  }
  return true;
}

bool multiplies_pairs(const AttentionCase& c) {
  return runtime::matmul_isa() >= runtime::Isa::kAvx512Bf16 && c.format == Format::kBf16 && !c.codes;
}

}  // namespace plimsoll::kernels::testing
