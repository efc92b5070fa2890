#include "plimsoll/models/decoder/rotation.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/stack.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <string_view>

#include "plimsoll/models/decoder/traits.h"
#include "plimsoll/runtime/philox.h"

namespace plimsoll::models {
namespace {

constexpr std::string_view kNormOfAttention = "layernorm_qkv.layer_norm_weight", kNormOfMlp = "mlp.layer_norm_weight",
                           kLastNorm = "norm.weight";
constexpr std::string_view kQkv = "layernorm_qkv.weight", kFc1 = "mlp.fc1_weight";
constexpr std::string_view kEmbedding = "token_embedding.weight", kHead = "head.weight";

bool is_folded_norm(std::string_view parameter) {
  return parameter.ends_with(kNormOfAttention) || parameter.ends_with(kNormOfMlp) || parameter == kLastNorm;
}

// Whether it adds to the stream.
bool writes(std::string_view parameter) {
  for (const std::string_view end :
       {"self_attention.proj.weight", "self_attention.proj.bias", "mlp.fc2_weight", "mlp.fc2_bias"}) {
    if (parameter.ends_with(end)) return true;
  }
  return false;
}

}  // namespace

ResidualRotation::ResidualRotation(const DecoderConfig& config, uint64_t seed)
    : config_(config), size_(config.dim & -config.dim) {
  const bool only_reads = config.normalization == nn::Normalization::kRmsNorm && !config.norms_branches &&
                          !config.zero_centered_norms && !config.learned_positions;
  if (!only_reads) {
    throw std::invalid_argument(
        "rotation: expected a model of RMS norms that only read the residual stream (llama, mistral, qwen2, qwen3), got " +
        std::string(traits_of(config.family).model_type));
  }
  config_.ties_head = false;
  signs_ = at::empty({config.dim}, at::kDouble);
  const runtime::Philox random{.seed = seed};
  const double magnitude = 1 / std::sqrt(static_cast<double>(size_));
  auto* const signs = signs_.mutable_data_ptr<double>();
  for (int64_t i = 0; i < config.dim; ++i) {
    const uint32_t word = random.word(static_cast<uint64_t>(i / 32));
    signs[i] = (word >> (i % 32) & 1) != 0 ? -magnitude : magnitude;
  }
}

std::optional<std::string> ResidualRotation::folded_norm(const std::string& parameter) {
  if (parameter == kHead) return std::string(kLastNorm);
  for (const auto& [matrix, norm] : {std::pair{kQkv, kNormOfAttention}, {kFc1, kNormOfMlp}}) {
    if (parameter.ends_with(matrix)) return parameter.substr(0, parameter.size() - matrix.size()) + std::string(norm);
  }
  return std::nullopt;
}

at::Tensor ResidualRotation::of_rows(const at::Tensor& rows) const {
  at::Tensor sums = (rows * signs_).reshape({-1, size_});
  for (int64_t apart = 1; apart < size_; apart *= 2) {
    const at::Tensor pairs = sums.view({-1, 2, apart});
    const at::Tensor first = pairs.select(1, 0), second = pairs.select(1, 1);
    sums = at::stack({first + second, first - second}, 1);
  }
  return sums.view(rows.sizes());
}

at::Tensor ResidualRotation::rounded_rows(const at::Tensor& rows, const at::Tensor& norm_weight) const {
  constexpr int64_t kElements = 1 << 18;  // 2 MiB in double
  const int64_t step = std::max<int64_t>(1, kElements / rows.size(1));
  at::Tensor result = at::empty(rows.sizes(), at::kFloat);
  for (int64_t begin = 0; begin < rows.size(0); begin += step) {
    const int64_t end = std::min(begin + step, rows.size(0));
    const at::Tensor part = rows.slice(0, begin, end).to(at::kDouble);  // the caller's own memory where it is in double
    result.slice(0, begin, end).copy_(of_rows((norm_weight.defined() ? part * norm_weight : part).contiguous()));
  }
  return result;
}

at::Tensor ResidualRotation::rotated(const std::string& parameter, const at::Tensor& values,
                                     const at::Tensor& norm_weight) const {
  const bool is_folded = folded_norm(parameter).has_value();
  TORCH_INTERNAL_ASSERT(is_folded == norm_weight.defined());
  if (is_folded_norm(parameter)) return at::ones_like(values, at::kFloat);
  if (is_folded) return rounded_rows(values, norm_weight.to(at::kDouble));
  if (parameter == kEmbedding) return rounded_rows(values, {});
  if (writes(parameter)) {
    const bool is_bias = values.dim() == 1;
    const at::Tensor columns = rounded_rows(is_bias ? values.unsqueeze(0) : values.t(), {});
    return is_bias ? columns.squeeze(0) : columns.t().contiguous();
  }
  return values.to(at::kFloat);  // behind a matrix that reads the stream
}

}  // namespace plimsoll::models
