#include "plimsoll/models/t5/team_step.h"

#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "plimsoll/kernels/embedding/embedding.h"
#include "plimsoll/kernels/norm/norm.h"
#include "plimsoll/nn/precision.h"
#include "plimsoll/ops/tensor/dtype.h"
#include "plimsoll/runtime/threads.h"
#include "plimsoll/runtime/unexpected.h"
#include "plimsoll/watch/profile.h"
#include "plimsoll/watch/session.h"

namespace plimsoll::models {
namespace {

// Beyond them threads had better divide norms, too.
constexpr int64_t kMostRows = 64;
constexpr int64_t kAlignment = 64;  // bytes

// body(values): `values` as the type of the format.
template <class F>
void with_values(format::Format format, const void* values, F&& body) {
  switch (format) {
    case format::Format::kBf16:
      return body(static_cast<const c10::BFloat16*>(values));
    case format::Format::kFp16:
      return body(static_cast<const c10::Half*>(values));
    case format::Format::kFp32:
      return body(static_cast<const float*>(values));
    case format::Format::kE4m3:
    case format::Format::kE5m2:
    case format::Format::kE2m1:
    case format::Format::kE8m0:
      break;
  }
  runtime::unexpected("T5: format of values", static_cast<int>(format));
}

kernels::AttentionInput heads_of(const at::Tensor& x, int64_t head_dim, int64_t row_dim) {
  return {x.const_data_ptr(), x.stride(0), x.stride(head_dim), x.stride(row_dim)};
}

kernels::AttentionOutput token_of(const at::Tensor& cached, int64_t token, int64_t bytes) {
  char* data = static_cast<char*>(cached.mutable_data_ptr()) + token * cached.stride(1) * bytes;
  return {data, cached.stride(0), cached.stride(2), cached.stride(1)};
}

template <class View>
View moved(View view, int64_t elements, int64_t bytes) {
  if (view.data == nullptr) return view;
  using Byte = std::conditional_t<std::is_const_v<std::remove_pointer_t<decltype(view.data)>>, const char, char>;
  view.data = static_cast<Byte*>(view.data) + elements * bytes;
  return view;
}

}  // namespace

std::optional<at::Tensor> T5TeamStep::logits(T5ForConditionalGenerationImpl& model, const at::Tensor& tokens,
                                             T5Cache& cache) {
  if (tokens.size(1) != 1 || tokens.size(0) > kMostRows || cache.length() == 0) return std::nullopt;
  if (model.is_training() || watch::current() != nullptr || nn::scope_dtype()) return std::nullopt;
  T5TeamStep step(model, tokens, cache);
  const bool has_fixes = model.numerics && step.dtype_ == at::kHalf;
  const bool same_dtype = cache.layers_.front().encoder.key.scalar_type() == step.dtype_;
  if (has_fixes || !same_dtype || cache.encoder_keys_.additive.defined() || !step.finds_weights()) return std::nullopt;
  return step.run();
}

T5TeamStep::T5TeamStep(T5ForConditionalGenerationImpl& model, const at::Tensor& tokens, T5Cache& cache)
    : model_(model),
      tokens_(tokens.contiguous()),
      cache_(cache),
      dtype_(model.encoder->final_layer_norm->weight.scalar_type()),
      format_(ops::format_of(dtype_, "t5")),
      rows_(tokens.size(0)),
      size_(format::bytes(format_)) {}

bool T5TeamStep::finds_weights() {
  bool found = true;
  const auto packed = [&](const T5Product& product) {
    Packed weights = found ? product.packed_for(dtype_) : nullptr;
    found = weights != nullptr && weights->fits();
    return weights;
  };
  T5StackImpl& decoder = *model_.decoder;
  for (size_t i = 0; i < decoder.block->size() && found; ++i) {
    T5BlockImpl& block = decoder.block_at(i);
    T5AttentionImpl &own = block.self_attention(), &cross = block.cross_attention();
    T5DenseReluDenseImpl& feed_forward = block.feed_forward();
    const auto norm = [&](size_t layer) { return block.layer->at<T5LayerImpl>(layer).layer_norm.get(); };
    blocks_.push_back(
        {.own = {.norm = norm(0), .in = packed(own.query_key_value_), .out = packed(own.output_)},
         .cross = {.norm = norm(1), .in = packed(cross.query_), .out = packed(cross.output_)},
         .feed_forward = {.norm = norm(2), .up = packed(feed_forward.up_), .down = packed(feed_forward.down_)}});
  }
  head_ = packed(model_.logits_);
  return found;
}

void T5TeamStep::place_buffers() {
  const T5Config& config = model_.config;
  const int64_t inner = config.num_heads * config.d_kv, gates = config.gated() ? 2 : 1;
  int64_t bytes = 0;
  const auto place = [&](int64_t columns, int64_t size) {
    const int64_t at = bytes;
    bytes += (rows_ * columns * size + kAlignment - 1) / kAlignment * kAlignment;
    return at;
  };
  const int64_t in = place(3 * inner, size_), read = place(inner, size_), up = place(gates * config.d_ff, size_),
                out = place(config.d_model, size_), first = bytes;
  const int64_t hidden = place(config.d_model, size_), sum = place(config.d_model, size_),
                x = place(config.d_model, size_), activated = place(config.d_ff, size_),
                norm_weight = place(config.d_model, sizeof(float)), each = bytes - first;
  const int threads = runtime::threads();
  memory_ = at::empty({first + threads * each}, at::kByte);
  char* base = static_cast<char*>(memory_.mutable_data_ptr());
  in_ = base + in;
  read_ = base + read;
  up_ = base + up;
  out_ = base + out;
  for (int i = 0; i < threads; ++i, base += each) {
    own_.push_back(
        {base + hidden, base + sum, base + x, base + activated, reinterpret_cast<float*>(base + norm_weight)});
  }
}

T5TeamStep::Attention T5TeamStep::self_attention(size_t layer) {
  const T5Config& config = model_.config;
  Attention result = blocks_[layer].own;
  T5LayerCache& cache = cache_.layers_[layer];
  const nn::CachedTokens& tokens = cache.tokens.grow(1);
  const int64_t length = cache.tokens.length(), inner = config.num_heads * config.d_kv;
  result.key = token_of(tokens.key, length - 1, size_);
  result.value = token_of(tokens.value, length - 1, size_);
  result.call = {.shape = {.batch = rows_,
                           .heads = config.num_heads,
                           .groups = config.num_heads,
                           .queries = 1,
                           .keys = length,
                           .channels = config.d_kv,
                           .value_channels = config.d_kv},
                 .rules = {.causal = kernels::Causal::kBottomRight},
                 .format = format_,
                 .q = {in_, 3 * inner, config.d_kv, 3 * inner},
                 .k = heads_of(tokens.key, 2, 1),
                 .v = heads_of(tokens.value, 2, 1),
                 .cache_format = format_,
                 .output = {read_, inner, config.d_kv, inner}};
  return result;
}

T5TeamStep::Attention T5TeamStep::cross_attention(size_t layer) const {
  const T5Config& config = model_.config;
  Attention result = blocks_[layer].cross;
  const T5CrossKeys& encoder = cache_.layers_[layer].encoder;
  const T5KeyMask& keys = cache_.encoder_keys_;
  const int64_t texts = encoder.key.size(0), queries = rows_ / texts, inner = config.num_heads * config.d_kv;
  result.call = {.shape = {.batch = texts,
                           .heads = config.num_heads,
                           .groups = config.num_heads,
                           .queries = queries,
                           .keys = encoder.key.size(2),
                           .channels = config.d_kv,
                           .value_channels = config.d_kv},
                 .format = format_,
                 .q = {in_, queries * inner, config.d_kv, inner},
                 .k = heads_of(encoder.key, 1, 2),
                 .v = heads_of(encoder.value, 1, 2),
                 .cache_format = format_,
                 .output = {read_, queries * inner, config.d_kv, inner}};
  if (keys.lengths.defined()) result.call.rules.key_lengths = keys.lengths.const_data_ptr<int64_t>();
  if (keys.mask.defined()) {
    result.call.rules.mask = static_cast<const uint8_t*>(keys.mask.const_data_ptr());
    result.call.rules.mask_strides = {.batch = keys.mask.stride(0), .key = keys.mask.stride(3)};
  }
  return result;
}

at::Tensor T5TeamStep::run() {
  const int64_t* ids = tokens_.const_data_ptr<int64_t>();
  for (int64_t row = 0; row < rows_; ++row) {
    TORCH_CHECK(ids[row] >= 0 && ids[row] < model_.config.vocab_size, "embedding: expected tokens in [0, ",
                model_.config.vocab_size, "), got ", ids[row]);
  }
  place_buffers();
  T5StackImpl& decoder = *model_.decoder;
  at::Tensor bias;
  for (size_t i = 0; i < blocks_.size(); ++i) {
    T5AttentionImpl& attention = decoder.block_at(i).self_attention();
    if (!attention.relative_attention_bias.is_empty()) bias = decoder.cached_bias(attention, 1, cache_.layers_[i]);
    blocks_[i].own = self_attention(i);
    blocks_[i].cross = cross_attention(i);
    kernels::AttentionRules& rules = blocks_[i].own.call.rules;
    rules.bias = bias.const_data_ptr();
    rules.bias_format = ops::format_of(bias.scalar_type(), "t5");
    rules.bias_strides = {.head = bias.stride(1), .key = bias.stride(3)};
  }
  cache_.length_ += 1;
  at::Tensor logits = at::empty({rows_, head_->columns()}, at::TensorOptions().dtype(dtype_));
  const watch::Span span("t5 step");
  runtime::run_team([&](const runtime::Team& team) { follow(team, logits); });
  return logits;
}

void T5TeamStep::follow(const runtime::Team& team, at::Tensor& logits) const {
  Own own = own_[static_cast<size_t>(team.index())];
  embed(own);
  bool adds = false;
  for (const Block& block : blocks_) {
    attend(team, own, block.own, adds);
    attend(team, own, block.cross, true);
    feed_forward(team, own, block.feed_forward);
    adds = true;
  }
  normalise(own, *model_.decoder->final_layer_norm, adds);
  if (model_.config.scale_decoder_outputs) scale(own.x);
  multiply(team, head_, own.x, logits.mutable_data_ptr());
}

void T5TeamStep::embed(const Own& own) const {
  const at::Tensor& table = model_.shared->weight;
  kernels::embedding_forward({.shape = {.batch = rows_, .seq = 1, .dim = model_.config.d_model},
                              .tokens = tokens_.const_data_ptr<int64_t>(),
                              .token_weight = table.const_data_ptr(),
                              .weight_format = ops::format_of(table.scalar_type(), "t5"),
                              .output = own.hidden,
                              .output_format = format_});
}

void T5TeamStep::normalise(Own& own, const T5WeightImpl& norm, bool adds) const {
  const int64_t cols = model_.config.d_model;
  with_values(ops::format_of(norm.weight.scalar_type(), "t5"), norm.weight.const_data_ptr(), [&](const auto* values) {
    std::transform(values, values + cols, own.norm_weight, [](auto value) { return static_cast<float>(value); });
  });
  kernels::norm_forward({.kind = kernels::NormKind::kRmsNorm,
                         .rows = rows_,
                         .cols = cols,
                         .x = own.hidden,
                         .residual = adds ? out_ : nullptr,
                         .sum = adds ? own.sum : nullptr,
                         .x_format = format_,
                         .weight = own.norm_weight,
                         .epsilon = static_cast<float>(model_.config.layer_norm_epsilon),
                         .y = own.x,
                         .y_format = format_});
  if (adds) std::swap(own.hidden, own.sum);
}

void T5TeamStep::scale(void* x) const {
  const auto factor = static_cast<float>(1 / std::sqrt(static_cast<double>(model_.config.d_model)));
  with_values(format_, x, [&](const auto* values) {
    using Value = std::remove_const_t<std::remove_pointer_t<decltype(values)>>;
    std::transform(values, values + rows_ * model_.config.d_model, static_cast<Value*>(x),
                   [&](auto value) { return static_cast<Value>(static_cast<float>(value) * factor); });
  });
}

void T5TeamStep::multiply(const runtime::Team& team, const Packed& weights, const void* x, void* values) const {
  weights->multiply_part({.x = x, .values = values, .count = rows_, .format = format_}, team.index(), team.size());
  team.wait();
}

void T5TeamStep::attend(const runtime::Team& team, Own& own, const Attention& attention, bool adds) const {
  normalise(own, *attention.norm, adds);
  multiply(team, attention.in, own.x, in_);
  const int64_t heads = attention.call.shape.heads;
  attend_heads(attention, heads * team.index() / team.size(), heads * (team.index() + 1) / team.size());
  team.wait();
  multiply(team, attention.out, read_, out_);
}

void T5TeamStep::attend_heads(const Attention& attention, int64_t begin, int64_t end) const {
  if (begin == end) return;
  const int64_t channels = attention.call.shape.channels, inner = attention.call.shape.heads * channels;
  if (attention.key.data != nullptr) {
    for (int64_t row = 0; row < rows_; ++row) {
      for (int64_t head = begin; head < end; ++head) {
        const char* query = in_ + (row * 3 * inner + head * channels) * size_;
        const auto copy = [&](const kernels::AttentionOutput& to, int64_t part) {
          char* place = static_cast<char*>(to.data) + (row * to.batch_stride + head * to.head_stride) * size_;
          std::memcpy(place, query + part * inner * size_, static_cast<size_t>(channels * size_));
        };
        copy(attention.key, 1);
        copy(attention.value, 2);
      }
    }
  }
  kernels::AttentionForward call = attention.call;
  call.shape.heads = call.shape.groups = end - begin;
  call.q = moved(call.q, begin * call.q.head_stride, size_);
  call.k = moved(call.k, begin * call.k.head_stride, size_);
  call.v = moved(call.v, begin * call.v.head_stride, size_);
  call.output = moved(call.output, begin * call.output.head_stride, size_);
  kernels::AttentionRules& rules = call.rules;
  if (rules.bias != nullptr) {
    rules.bias =
        static_cast<const char*>(rules.bias) + begin * rules.bias_strides.head * format::bytes(rules.bias_format);
  }
  kernels::attention_forward(call);
}

void T5TeamStep::feed_forward(const runtime::Team& team, Own& own, const FeedForward& layer) const {
  normalise(own, *layer.norm, true);
  multiply(team, layer.up, own.x, up_);
  kernels::activation_forward({.kind = model_.config.feed_forward,
                               .rows = rows_,
                               .cols = model_.config.d_ff,
                               .x = up_,
                               .x_format = format_,
                               .y = own.inner,
                               .y_format = format_});
  multiply(team, layer.down, own.inner, out_);
}

}  // namespace plimsoll::models
