#include "plimsoll/models/team/heads.h"

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "plimsoll/kernels/quantize/quantize.h"
#include "plimsoll/kernels/rotary/rotary.h"
#include "plimsoll/models/team/values.h"
#include "plimsoll/recipe/operand.h"

namespace plimsoll::models {
namespace {

template <class View>
View moved(View view, int64_t elements, int64_t bytes) {
  using Byte = std::conditional_t<std::is_const_v<std::remove_pointer_t<decltype(view.data)>>, const char, char>;
  view.data = static_cast<Byte*>(view.data) + elements * bytes;
  return view;
}

kernels::AttentionScale moved(kernels::AttentionScale scale, int64_t groups) {
  if (scale.data != nullptr) scale.data += groups * scale.group_stride;
  return scale;
}

}  // namespace

StepHeads::StepHeads(const StepAttention& attention, const char* projected, char* read)
    : attention_(attention),
      projected_(projected),
      read_(read),
      rows_(attention.rows()),
      channels_(attention.call.shape.channels),
      size_(format::bytes(attention.call.format)) {}

StepHeads::Heads StepHeads::columns(int64_t head, int64_t count) const {
  return {projected_ + head * channels_ * size_, count, attention_.in.columns()};
}

StepHeads::Heads StepHeads::prepared(Heads heads, const StepNorm& norm, const HeadScratch& scratch) const {
  const format::Format format = attention_.call.format;
  const int64_t row = heads.count * channels_;  // of what is written
  if (norm.defined()) {
    for (int64_t i = 0; i < rows_; ++i) {
      norm.run({.rows = heads.count,
                .x = heads.data + i * heads.row_stride * size_,
                .x_format = format,
                .y = scratch.normed + i * row * size_,
                .y_format = format},
               scratch.norm_weight);
    }
    heads = {scratch.normed, heads.count, row};
  }
  const ops::RotaryTurns& rotary = attention_.rotary;
  if (!rotary.cosine.defined()) return heads;
  kernels::rotary({.tokens = rows_,
                   .heads = heads.count,
                   .channels = channels_,
                   .rotated = rotary.cosine.size(1),
                   .x = heads.data,
                   .x_token_stride = heads.row_stride,
                   .x_head_stride = channels_,
                   .y = scratch.turned,
                   .format = format,
                   .cosine = rotary.cosine.const_data_ptr<float>(),
                   .sine = rotary.sine.const_data_ptr<float>(),
                   .positions = rotary.cosine.size(0)});
  return {scratch.turned, heads.count, row};
}

void StepHeads::write(const Heads& heads, int64_t group, const StepPlaces& places) const {
  const int64_t place_bytes = format::bytes(places.format);
  for (int64_t row = 0; row < rows_; ++row) {
    const int64_t token = places.tokens == nullptr ? 0 : places.tokens[row];
    for (int64_t i = 0; i < heads.count; ++i) {
      const char* from = heads.data + (row * heads.row_stride + i * channels_) * size_;
      const kernels::AttentionOutput& to = places.elements;
      const int64_t element = row * to.batch_stride + (group + i) * to.head_stride + token * to.row_stride;
      char* place = static_cast<char*>(to.data) + element * place_bytes;
      if (places.format == attention_.call.format) {
        std::memcpy(place, from, static_cast<size_t>(channels_ * size_));
        continue;
      }
      if (places.scale == nullptr) {
        with_values(attention_.call.format, from, [&](const auto* x) {
          std::transform(x, x + channels_, reinterpret_cast<c10::BFloat16*>(place),
                         [](auto value) { return static_cast<c10::BFloat16>(static_cast<float>(value)); });
        });
        continue;
      }
      kernels::quantize_blocks({.x = from,
                                .x_format = attention_.call.format,
                                .rows = 1,
                                .cols = channels_,
                                .x_stride = channels_,
                                .codes = reinterpret_cast<uint8_t*>(place),
                                .codes_stride = channels_,
                                .block_rows = recipe::kPerRow.block_rows,
                                .block_cols = recipe::kPerRow.block_cols,
                                .scale = places.scale + row * places.scale_row_stride +
                                         (group + i) * places.scale_group_stride + token * places.scale_token_stride,
                                .scale_stride = 1});
    }
  }
}

void StepHeads::attend(int64_t begin, int64_t end, const HeadScratch& scratch) const {
  if (begin == end) return;
  kernels::AttentionForward call = attention_.call;
  const kernels::AttentionShape all = call.shape;
  const int64_t group_heads = all.heads / all.groups, first = begin * group_heads;
  if (attention_.key.elements.data != nullptr) {
    write(prepared(columns(all.heads + begin, end - begin), attention_.key_norm, scratch), begin, attention_.key);
    write(columns(all.heads + all.groups + begin, end - begin), begin, attention_.value);
  }
  call.shape.groups = end - begin;
  call.shape.heads = call.shape.groups * group_heads;
  const Heads query = prepared(columns(first, call.shape.heads), attention_.query_norm, scratch);
  const int64_t inner = all.heads * channels_, cache_bytes = format::bytes(call.cache_format);
  call.q = {query.data, all.queries * query.row_stride, channels_, query.row_stride};
  call.k = moved(call.k, begin * call.k.head_stride, cache_bytes);
  call.v = moved(call.v, begin * call.v.head_stride, cache_bytes);
  call.k_scale = moved(call.k_scale, begin);
  call.v_scale = moved(call.v_scale, begin);
  call.output = {read_ + first * channels_ * size_, all.queries * inner, channels_, inner};
  kernels::AttentionRules& rules = call.rules;
  if (rules.bias != nullptr) {
    rules.bias =
        static_cast<const char*>(rules.bias) + first * rules.bias_strides.head * format::bytes(rules.bias_format);
  }
  if (rules.mask != nullptr) rules.mask += first * rules.mask_strides.head;
  kernels::attention_forward(call);
}

}  // namespace plimsoll::models
