// The public entries: the choice of instruction set, and the division into parts.
#include <algorithm>
#include <iterator>
#include <vector>

#include "plimsoll/kernels/attention/attention_isa.h"
#include "plimsoll/kernels/attention/attention_kernel.h"
#include "plimsoll/runtime/cpu.h"
#include "plimsoll/runtime/divide_up.h"
#include "plimsoll/runtime/pick.h"
#include "plimsoll/runtime/scratch.h"
#include "plimsoll/runtime/threads.h"

namespace plimsoll::kernels {
namespace {

using format::Format;
using runtime::divide_up;

const AttentionIsa& isa_of(Format format, Format cache_format) {
  const runtime::Isa isa = attention_isa(format, cache_format);
  if (isa == runtime::Isa::kAmx) return kAttentionAmx;
  return isa == runtime::Isa::kAvx512Bf16 ? kAttentionAvx512Bf16
                                          : runtime::pick(isa, kAttentionPortable, kAttentionAvx2, kAttentionAvx512);
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

// body(i) once for each i < count, by threads whose sums of cost(i), one or more, are about equal.
template <class Cost, class Body>
void parallel_by_cost(int64_t count, Cost cost, Body body) {
  int64_t all = 0;
  for (int64_t i = 0; i < count; ++i) all += cost(i);
  runtime::parallel_for(all, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = 0, place = 0; i < count && place < end; place += cost(i++)) {
      if (place >= begin) body(i);
    }
  });
}

// Few queries of every batch element and group, a pair.
class FewQueriesOfAll {
 public:
  explicit FewQueriesOfAll(const AttentionForward& args)
      : args_(args),
        isa_(*isa_of(args.format, args.cache_format).few),
        size_(isa_.size(args)),
        scratch_(isa_.scratch(args)) {
    for (int64_t pair = 0; pair < pairs(); ++pair) all_ += cost(pair);
  }

  // Threads share the work on a pair that is much of it all; each of the others is one thread's.
  void run() const {
    std::vector<int64_t> shared, own;
    for (int64_t pair = 0; pair < pairs(); ++pair) (is_shared(pair) ? shared : own).push_back(pair);
    run_together(shared);
    parallel_by_cost(
        std::ssize(own), [&](int64_t i) { return cost(own[static_cast<size_t>(i)]); },
        [&](int64_t i) { run_alone(own[static_cast<size_t>(i)]); });
  }

 private:
  int64_t pairs() const { return args_.shape.batch * args_.shape.groups; }
  int64_t batch(int64_t pair) const { return pair / args_.shape.groups; }
  int64_t group(int64_t pair) const { return pair % args_.shape.groups; }

  int64_t keys(int64_t pair) const {
    const int64_t* lengths = args_.rules.key_lengths;
    return lengths == nullptr ? args_.shape.keys : std::clamp<int64_t>(lengths[batch(pair)], 0, args_.shape.keys);
  }
  // Keys that are read, about; and what a pair without them takes.
  int64_t cost(int64_t pair) const {
    constexpr int64_t kAlways = 32;
    const int64_t window = args_.rules.window, there = keys(pair);
    return kAlways + (window == 0 ? there : std::min(there, window + args_.shape.queries));
  }
  // Otherwise the last thread to end would be late by more than an eighth of its time.
  bool is_shared(int64_t pair) const {
    const int64_t threads = runtime::threads();
    return threads > 1 && 8 * threads * cost(pair) > all_;
  }

  void score(int64_t pair, int64_t key, float* exponents) const {
    isa_.scores(args_, {batch(pair), group(pair), key}, exponents, part_scratch(scratch_));
  }
  void read_values(int64_t pair, int64_t begin, int64_t end, const float* exponents) const {
    isa_.values(args_, {batch(pair), group(pair), begin, end}, exponents, part_scratch(scratch_));
  }

  void run_alone(int64_t pair) const {
    float* exponents = scratch(runtime::ScratchSlot::kReduce, size_);
    for (int64_t key = 0; key < keys(pair); key += kFewKeys) score(pair, key, exponents);
    read_values(pair, 0, args_.shape.value_channels, exponents);
  }

  void run_together(const std::vector<int64_t>& together) const {
    const int64_t count = std::ssize(together), parts = divide_up(args_.shape.keys, kFewKeys);
    if (count == 0) return;
    const auto pair = [&](int64_t i) { return together[static_cast<size_t>(i)]; };
    float* exponents = scratch(runtime::ScratchSlot::kReduce, count * size_);
    parallel_by_cost(
        count * parts,
        [&](int64_t i) { return 1 + std::clamp<int64_t>(keys(pair(i / parts)) - i % parts * kFewKeys, 0, kFewKeys); },
        [&](int64_t i) { score(pair(i / parts), i % parts * kFewKeys, exponents + i / parts * size_); });
    // Weights are computed for each slice of the channels, so there are no more slices than threads need.
    constexpr int64_t kSlice = 32;
    const int64_t channels = args_.shape.value_channels, wanted = divide_up(runtime::threads(), count);
    const int64_t width = std::max(divide_up(divide_up(channels, wanted), kSlice) * kSlice, kSlice);
    const int64_t slices = std::max<int64_t>(divide_up(channels, width), 1);
    parallel_by_cost(
        count * slices, [&](int64_t i) { return cost(pair(i / slices)); },
        [&](int64_t i) {
          const int64_t channel = i % slices * width;
          read_values(pair(i / slices), channel, std::min(channel + width, channels), exponents + i / slices * size_);
        });
  }

  const AttentionForward& args_;
  const AttentionFew& isa_;
  const int64_t size_, scratch_;
  int64_t all_ = 0;
};

}  // namespace

runtime::Isa attention_isa(Format format, Format cache_format) {
  const bool pairs = format == Format::kBf16 && cache_format == Format::kBf16;
  return pairs ? runtime::matmul_isa() : std::min(runtime::vector_matmul_isa(), runtime::Isa::kAvx512);
}

void attention_forward(const AttentionForward& args) {
  const AttentionShape& shape = args.shape;
  if (shape.batch * shape.heads * shape.queries == 0) return;
  if (shape.queries <= kFewQueries && args.rules.dropout.probability == 0.0f) return FewQueriesOfAll(args).run();
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
