#include "plimsoll/models/team/heads.h"

#include <algorithm>
#include <cstring>
#include <span>

#include "plimsoll/kernels/quantize/quantize.h"
#include "plimsoll/kernels/rotary/rotary.h"
#include "plimsoll/models/team/values.h"
#include "plimsoll/recipe/operand.h"

namespace plimsoll::models {
namespace {

// From another text and head on.
kernels::AttentionInput moved(kernels::AttentionInput input, int64_t text, int64_t head, int64_t bytes) {
  const int64_t elements = text * input.batch_stride + head * input.head_stride;
  input.data = static_cast<const char*>(input.data) + elements * bytes;
  return input;
}

kernels::AttentionScale moved(kernels::AttentionScale scale, int64_t text, int64_t group) {
  if (scale.data != nullptr) scale.data += text * scale.batch_stride + group * scale.group_stride;
  return scale;
}

kernels::AttentionRules moved(kernels::AttentionRules rules, int64_t text, int64_t head) {
  const auto elements = [&](const kernels::AttentionMatrixStrides& strides) {
    return text * strides.batch + head * strides.head;
  };
  if (rules.key_lengths != nullptr) rules.key_lengths += text;
  if (rules.mask != nullptr) rules.mask += elements(rules.mask_strides);
  if (rules.bias != nullptr) {
    rules.bias = static_cast<const char*>(rules.bias) + elements(rules.bias_strides) * format::bytes(rules.bias_format);
  }
  return rules;
}

}  // namespace

StepHeads::StepHeads(const StepAttention& attention, const char* projected, char* read)
    : attention_(attention),
      projected_(projected),
      read_(read),
      channels_(attention.call.shape.channels),
      size_(format::bytes(attention.call.format)) {}

StepHeads::Heads StepHeads::columns(const Part& part, int64_t head, int64_t count) const {
  const int64_t queries = attention_.call.shape.queries, stride = attention_.in.columns();
  const auto row_of = [&](int64_t text) {
    return attention_.texts == nullptr ? text * queries : attention_.texts->first_row[static_cast<size_t>(text)];
  };
  const int64_t row = row_of(part.text), rows = row_of(part.text + part.texts) - row;
  return {projected_ + (row * stride + head * channels_) * size_, row, rows, count, stride};
}

StepHeads::Heads StepHeads::prepared(Heads heads, const StepNorm& norm, const HeadScratch& scratch) const {
  const format::Format format = attention_.call.format;
  const int64_t row = heads.count * channels_;  // of what is written
  if (norm.defined()) {
    for (int64_t i = 0; i < heads.rows; ++i) {
      norm.run({.rows = heads.count,
                .x = heads.data + i * heads.row_stride * size_,
                .x_format = format,
                .y = scratch.normed + i * row * size_,
                .y_format = format},
               scratch.norm_weight);
    }
    heads.data = scratch.normed;
    heads.row_stride = row;
  }
  const ops::RotaryTurns& rotary = attention_.rotary;
  if (!rotary.cosine.defined()) return heads;
  const int64_t positions = rotary.cosine.size(0), rotated = rotary.cosine.size(1);
  const int64_t first = positions == 1 ? 0 : heads.first_row * rotated;
  kernels::rotary({.tokens = heads.rows,
                   .heads = heads.count,
                   .channels = channels_,
                   .rotated = rotated,
                   .x = heads.data,
                   .x_token_stride = heads.row_stride,
                   .x_head_stride = channels_,
                   .y = scratch.turned,
                   .format = format,
                   .cosine = rotary.cosine.const_data_ptr<float>() + first,
                   .sine = rotary.sine.const_data_ptr<float>() + first,
                   .positions = positions == 1 ? 1 : heads.rows});
  heads.data = scratch.turned;
  heads.row_stride = row;
  return heads;
}

StepHeads::Place StepHeads::place_of(const Part& part, int64_t row, const StepPlaces& places) const {
  const StepTexts* texts = attention_.texts;
  if (texts == nullptr) return {row, places.tokens == nullptr ? 0 : places.tokens[row]};
  // Several texts have a row each.
  const auto text = static_cast<size_t>(
      part.texts == 1 ? part.text : part.text + row - texts->first_row[static_cast<size_t>(part.text)]);
  const int64_t token = texts->lengths[text] - (texts->first_row[text + 1] - row), page = attention_.call.pages.rows;
  return {texts->numbers[text][token / page], token % page};
}

void StepHeads::write(const Heads& heads, const Part& part, const StepPlaces& places) const {
  const int64_t place_bytes = format::bytes(places.format);
  for (int64_t own_row = 0; own_row < heads.rows; ++own_row) {
    const auto [batch, token] = place_of(part, heads.first_row + own_row, places);
    for (int64_t i = 0; i < heads.count; ++i) {
      const char* from = heads.data + (own_row * heads.row_stride + i * channels_) * size_;
      const kernels::AttentionOutput& to = places.elements;
      const int64_t element = batch * to.batch_stride + (part.group + i) * to.head_stride + token * to.row_stride;
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
                                .scale = places.scale + batch * places.scale_row_stride +
                                         (part.group + i) * places.scale_group_stride +
                                         token * places.scale_token_stride,
                                .scale_stride = 1});
    }
  }
}

int64_t StepHeads::texts_alike(int64_t text) const {
  const StepTexts* texts = attention_.texts;
  if (texts == nullptr) return attention_.call.shape.batch - text;
  if (attention_.call.rules.bias != nullptr) return 1;  // which begins elsewhere for each length
  int64_t end = text;
  while (end < texts->count() && texts->rows(end) == 1) ++end;
  return end - text;
}

int64_t StepHeads::first_of(int64_t index, int64_t threads) const {
  const StepTexts* texts = attention_.texts;
  const int64_t groups = attention_.call.shape.groups;
  if (texts == nullptr) return attention_.call.shape.batch * groups * index / threads;
  // Keys are read once, and multiplied with each row.
  const auto cost = [&](int64_t text) {
    return (8 + texts->rows(text)) * (32 + texts->lengths[static_cast<size_t>(text)]);
  };
  int64_t left = 0;
  for (int64_t text = 0; text < texts->count(); ++text) left += cost(text) * groups;
  left = left * index / threads;
  int64_t text = 0;
  for (; text < texts->count() && left >= cost(text) * groups; ++text) left -= cost(text) * groups;
  return text * groups + (text < texts->count() ? (left + cost(text) / 2) / cost(text) : 0);
}

void StepHeads::attend(int64_t begin, int64_t end, const HeadScratch& scratch) const {
  const int64_t groups = attention_.call.shape.groups;
  for (int64_t pair = begin; pair < end;) {
    const int64_t text = pair / groups, group = pair % groups, left = end - pair;
    const bool whole = group == 0 && left >= groups;
    const Part part = {text, whole ? std::max<int64_t>(std::min(left / groups, texts_alike(text)), 1) : 1, group,
                       whole ? groups : std::min(groups - group, left)};
    attend(part, scratch);
    pair += part.texts * part.groups;
  }
}

void StepHeads::attend(const Part& part, const HeadScratch& scratch) const {
  kernels::AttentionForward call = attention_.call;
  const bool in_pages = attention_.texts != nullptr;
  if (in_pages) {
    const auto first = static_cast<size_t>(part.text);
    const std::span lengths = std::span(attention_.texts->lengths).subspan(first, static_cast<size_t>(part.texts));
    call.shape.queries = attention_.texts->rows(part.text);
    call.shape.keys = std::ranges::max(lengths);
    call.rules.key_lengths = lengths.data();
    call.pages.numbers = attention_.texts->numbers.data() + first;
    if (call.rules.bias != nullptr) {  // from the distance of the first key to the first query on
      const int64_t before = lengths.front() - call.shape.queries;
      call.rules.bias = static_cast<const char*>(call.rules.bias) - before * format::bytes(call.rules.bias_format);
    }
  }
  const kernels::AttentionShape all = call.shape;
  const int64_t batch = in_pages ? 0 : part.text;  // of what `call` has
  const int64_t group_heads = all.heads / all.groups, first = part.group * group_heads;
  if (attention_.key.elements.data != nullptr) {
    write(prepared(columns(part, all.heads + part.group, part.groups), attention_.key_norm, scratch), part,
          attention_.key);
    write(columns(part, all.heads + all.groups + part.group, part.groups), part, attention_.value);
  }
  call.shape.batch = part.texts;
  call.shape.groups = part.groups;
  call.shape.heads = part.groups * group_heads;
  const Heads query = prepared(columns(part, first, call.shape.heads), attention_.query_norm, scratch);
  const int64_t inner = all.heads * channels_, cache_bytes = format::bytes(call.cache_format);
  call.q = {query.data, all.queries * query.row_stride, channels_, query.row_stride};
  call.k = moved(call.k, batch, part.group, cache_bytes);
  call.v = moved(call.v, batch, part.group, cache_bytes);
  call.k_scale = moved(call.k_scale, batch, part.group);
  call.v_scale = moved(call.v_scale, batch, part.group);
  call.rules = moved(call.rules, batch, first);
  call.output = {read_ + (query.first_row * inner + first * channels_) * size_, all.queries * inner, channels_, inner};
  kernels::attention_forward(call);
}

}  // namespace plimsoll::models
