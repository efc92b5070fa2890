#include "plimsoll/models/t5/team_step.h"

#include <cmath>

#include "plimsoll/ops/tensor/dtype.h"

namespace plimsoll::models {
namespace {

kernels::AttentionInput encoder_heads(const at::Tensor& x) {
  return {x.const_data_ptr(), x.stride(0), x.stride(1), x.stride(2)};
}

}  // namespace

std::optional<at::Tensor> T5TeamStep::logits(T5ForConditionalGenerationImpl& model, const at::Tensor& tokens,
                                             T5Cache& cache) {
  if (tokens.size(1) != 1 || tokens.size(0) > kMostStepRows || cache.length() == 0) return std::nullopt;
  if (model.is_training() || !may_step()) return std::nullopt;
  T5TeamStep step(model, tokens, cache);
  const bool has_fixes = model.numerics && step.dtype_ == at::kHalf;
  const bool same_dtype = cache.layers_.front().encoder.key.scalar_type() == step.dtype_;
  if (has_fixes || !same_dtype || cache.encoder_keys_.additive.defined()) return std::nullopt;
  step.describe();
  if (!fits(step.step_)) return std::nullopt;
  check_tokens({tokens.const_data_ptr<int64_t>(), static_cast<size_t>(tokens.numel())}, model.config.vocab_size);
  step.extend_cache();
  return run(step.step_);
}

T5TeamStep::T5TeamStep(T5ForConditionalGenerationImpl& model, const at::Tensor& tokens, T5Cache& cache)
    : model_(model),
      cache_(cache),
      dtype_(model.encoder->final_layer_norm->weight.scalar_type()),
      step_{
          .tokens = tokens.contiguous(), .format = ops::format_of(dtype_, "t5"), .token_weight = model.shared->weight} {
  if (model.config.scale_decoder_outputs) step_.head_factor = 1 / std::sqrt(static_cast<double>(model.config.d_model));
}

void T5TeamStep::describe() {
  const auto packed = [&](const T5Product& product) -> StepProduct {
    const auto weights = product.packed_for(dtype_);
    if (weights == nullptr) return {};
    return {.weight = weights->operand(), .packed = weights->packed()};
  };
  const auto norm = [&](const T5Weight& weight) {
    return StepNorm{.weight = weight->weight, .epsilon = model_.config.layer_norm_epsilon};
  };
  T5StackImpl& decoder = *model_.decoder;
  for (size_t i = 0; i < decoder.block->size(); ++i) {
    T5BlockImpl& block = decoder.block_at(i);
    T5AttentionImpl &own = block.self_attention(), &cross = block.cross_attention();
    T5DenseReluDenseImpl& feed_forward = block.feed_forward();
    const auto add = [&](auto part) {
      step_.layers.push_back(
          {.norm = norm(block.layer->at<T5LayerImpl>(step_.layers.size() % 3).layer_norm), .part = std::move(part)});
    };
    add(StepAttention{.in = packed(own.query_key_value_), .out = packed(own.output_)});
    add(StepAttention{.in = packed(cross.query_), .call = cross_attention(i), .out = packed(cross.output_)});
    add(StepFeedForward{
        .up = packed(feed_forward.up_), .activation = model_.config.feed_forward, .down = packed(feed_forward.down_)});
  }
  step_.norm = norm(decoder.final_layer_norm);
  step_.head = packed(model_.logits_);
}

// Attention of the step's rows, as many to a text as there are; keys, values and their number are still to be set.
kernels::AttentionForward T5TeamStep::attention(int64_t texts) const {
  const T5Config& config = model_.config;
  return {.shape = {.batch = texts,
                    .heads = config.num_heads,
                    .groups = config.num_heads,
                    .queries = step_.tokens.size(0) / texts,
                    .channels = config.d_kv,
                    .value_channels = config.d_kv},
          .format = step_.format,
          .cache_format = step_.format};
}

kernels::AttentionForward T5TeamStep::cross_attention(size_t block) const {
  const T5CrossKeys& encoder = cache_.layers_[block].encoder;
  const T5KeyMask& keys = cache_.encoder_keys_;
  kernels::AttentionForward call = attention(encoder.key.size(0));
  call.shape.keys = encoder.key.size(2);
  call.k = encoder_heads(encoder.key);
  call.v = encoder_heads(encoder.value);
  if (keys.lengths.defined()) call.rules.key_lengths = keys.lengths.const_data_ptr<int64_t>();
  if (keys.mask.defined()) {
    call.rules.mask = static_cast<const uint8_t*>(keys.mask.const_data_ptr());
    call.rules.mask_strides = {.batch = keys.mask.stride(0), .key = keys.mask.stride(3)};
  }
  return call;
}

void T5TeamStep::extend_cache() {
  T5StackImpl& decoder = *model_.decoder;
  at::Tensor bias;
  for (size_t i = 0; i < decoder.block->size(); ++i) {
    T5AttentionImpl& module = decoder.block_at(i).self_attention();
    T5LayerCache& cache = cache_.layers_[i];
    if (!module.relative_attention_bias.is_empty()) bias = decoder.cached_bias(module, 1, cache);
    StepAttention& part = self_attention(i);
    part.call = attention(step_.tokens.size(0));
    part.call.rules = {.causal = kernels::Causal::kBottomRight,
                       .bias = bias.const_data_ptr(),
                       .bias_format = ops::format_of(bias.scalar_type(), "t5"),
                       .bias_strides = {.head = bias.stride(1), .key = bias.stride(3)}};
    part.extend(cache.tokens);
  }
  cache_.length_ += 1;
}

}  // namespace plimsoll::models
