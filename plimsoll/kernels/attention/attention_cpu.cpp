// The public entries: the choice of instruction set, and the division into parts.
#include <algorithm>

#include "plimsoll/kernels/attention/attention_isa.h"
#include "plimsoll/runtime/cpu.h"
#include "plimsoll/runtime/pick.h"
#include "plimsoll/runtime/scratch.h"
#include "plimsoll/runtime/threads.h"

namespace plimsoll::kernels {
namespace {

using format::Format;

constexpr int64_t divide_up(int64_t x, int64_t by) { return (x + by - 1) / by; }

const AttentionIsa& fp32_isa() {
  return runtime::pick(runtime::vector_matmul_isa(), kAttentionPortable, kAttentionAvx2, kAttentionAvx512);
}

const AttentionIsa& isa_of(Format format, Format cache_format) {
  const bool pairs = runtime::vector_matmul_isa() >= runtime::Isa::kAvx512Bf16;
  return pairs && format == Format::kBf16 && cache_format == Format::kBf16 ? kAttentionAvx512Bf16 : fp32_isa();
}

float* scratch(runtime::ScratchSlot slot, int64_t count) {
  return static_cast<float*>(runtime::scratch(slot, static_cast<size_t>(count) * sizeof(float)));
}
float* part_scratch(int64_t count) { return scratch(runtime::ScratchSlot::kAttention, count); }

// Queries of a part: as many as keep the sums of a group's heads in L2, fewer where threads would be idle.
int64_t queries_of_part(const AttentionShape& shape, bool causal) {
  constexpr int64_t kSums = 128 * 1024;
  const int64_t fitting = kSums / (shape.heads / shape.groups * std::max<int64_t>(shape.value_channels, 1));
  const int64_t idle = divide_up(runtime::threads(), shape.batch * shape.groups);
  const int64_t parts = causal && idle > 1 ? 2 * idle : idle;
  const int64_t queries = std::min(fitting, divide_up(shape.queries, parts));
  return std::max<int64_t>(divide_up(queries, kAttentionQueries), 1) * kAttentionQueries;
}

// The first part, the last, the second, the last but one, ...: under the causal rule two neighbours are equal work.
int64_t pair_up(int64_t i, int64_t parts) { return i % 2 == 0 ? i / 2 : parts - 1 - i / 2; }

void forward_few(const AttentionForward& args) {
  const AttentionIsa& isa = isa_of(args.format, args.cache_format);
  const AttentionShape& shape = args.shape;
  const int64_t heads = shape.batch * shape.groups, parts = divide_up(shape.keys, kFewKeys);
  const int64_t size = isa.few_size(args), count = isa.few_scratch(args);
  float* exponents = scratch(runtime::ScratchSlot::kReduce, heads * size);
  runtime::parallel_for(heads * parts, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t head = i / parts;
      isa.few_scores(args, {head / shape.groups, head % shape.groups, i % parts * kFewKeys}, exponents + head * size,
                     part_scratch(count));
    }
  });
  // Weights are computed for each slice of the channels, so there are no more slices than threads need.
  constexpr int64_t kSlice = 32;
  const int64_t wanted = divide_up(runtime::threads(), heads);
  const int64_t width = divide_up(divide_up(shape.value_channels, wanted), kSlice) * kSlice;
  const int64_t slices = std::max<int64_t>(divide_up(shape.value_channels, std::max(width, kSlice)), 1);
  runtime::parallel_for(heads * slices, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t head = i / slices, channel = i % slices * width;
      const FewChannelsPart part = {head / shape.groups, head % shape.groups, channel,
                                    std::min(channel + width, shape.value_channels)};
      isa.few_values(args, part, exponents + head * size, part_scratch(count));
    }
  });
}

}  // namespace

void attention_forward(const AttentionForward& args) {
  const AttentionShape& shape = args.shape;
  if (shape.batch * shape.heads * shape.queries == 0) return;
  if (shape.queries <= kFewQueries && args.rules.dropout.probability == 0.0f) return forward_few(args);
  const AttentionIsa& isa = isa_of(args.format, args.cache_format);
  const int64_t queries = queries_of_part(shape, args.rules.causal != Causal::kNone),
                parts = divide_up(shape.queries, queries);
  const int64_t count = isa.forward_scratch(args, queries);
  runtime::parallel_for(shape.batch * shape.groups * parts, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t first = pair_up(i % parts, parts) * queries, head = i / parts, next = (i + 1) / parts;
      ForwardPart part = {.batch = head / shape.groups,
                          .group = head % shape.groups,
                          .query_begin = first,
                          .query_end = std::min(first + queries, shape.queries)};
      if (i + 1 < end && next != head) part.next = {next / shape.groups, next % shape.groups};
      isa.forward(args, part, part_scratch(count));
    }
  });
}

void attention_backward(const AttentionBackward& args) {
  const AttentionShape& shape = args.shape;
  if (shape.batch * shape.heads == 0) return;
  const AttentionIsa& isa = isa_of(args.format, args.format);
  // One part holds all batches and heads that add to the same gradient of the bias.
  const AttentionMatrixStrides& strides = args.grad_bias_strides;
  const bool sums = args.grad_bias != nullptr;
  const int64_t batch_parts = sums && strides.batch == 0 ? 1 : shape.batch;
  const int64_t group_parts = sums && strides.head == 0 ? 1 : shape.groups;
  const int64_t batches = shape.batch / batch_parts, groups = shape.groups / group_parts;
  const int64_t count = isa.backward_scratch(args);
  runtime::parallel_for(batch_parts * group_parts, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t batch = i / group_parts * batches, group = i % group_parts * groups, next = i + 1;
      BackwardPart part = {
          .batch_begin = batch, .batch_end = batch + batches, .group_begin = group, .group_end = group + groups};
      if (next < end) part.next = {next / group_parts * batches, next % group_parts * groups};
      isa.backward(args, part, part_scratch(count));
    }
  });
}

}  // namespace plimsoll::kernels
