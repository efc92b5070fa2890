// Medians of the useful GFLOP/s of attention (what the causal mask hides is not counted) against the limit of what it
// is multiplied with, FP32 FMA, VDPBF16PS or TDPBF16PS, measured between the calls. Both are per CPU second of the threads at
// work. Tensors lie on huge pages, as the caching allocator keeps them: rows of one head are pages apart, and walking
// page tables for them would be measured instead. Decoding: bytes/s of the cache against a plain loop over the same
// memory; scales of an E4M3 cache, four bytes for each 64 codes, are counted in neither.
#include <sys/mman.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "plimsoll/kernels/attention/attention.h"
#include "plimsoll/kernels/attention/attention_kernel.h"
#include "plimsoll/kernels/bench_data.h"
#include "plimsoll/kernels/stream_bench.h"
#include "plimsoll/runtime/cpu.h"

namespace plimsoll::kernels {
namespace {

using format::Format;

struct Case {
  AttentionShape shape;
  Format format;
  bool causal;
  float dropout = 0.0f;
  int64_t window = 0;
};

struct Free {
  void operator()(void* memory) const { std::free(memory); }
};

// [batch, rows, heads, channels].
struct Tensor {
  int64_t heads, rows, channels;
  size_t size;
  std::unique_ptr<uint8_t, Free> bytes;

  Tensor(Format format, int64_t batch, int64_t head_count, int64_t row_count, int64_t channel_count)
      : heads(head_count), rows(row_count), channels(channel_count) {
    constexpr size_t kHugePage = size_t{2} << 20;
    const std::vector<uint8_t> elements = bench::random_elements(format, batch * heads * rows * channels);
    size = elements.size();
    const size_t pages = (size + kHugePage - 1) / kHugePage * kHugePage;
    bytes.reset(static_cast<uint8_t*>(std::aligned_alloc(kHugePage, pages)));
    madvise(bytes.get(), pages, MADV_HUGEPAGE);
    std::memcpy(bytes.get(), elements.data(), size);
  }
  AttentionInput input() const { return {bytes.get(), heads * rows * channels, channels, heads * channels}; }
  AttentionOutput output() { return {bytes.get(), heads * rows * channels, channels, heads * channels}; }
};

double pairs_seen(const Case& c) {
  double count = 0;
  for (int64_t i = 0; i < c.shape.queries; ++i) {
    const int64_t left = c.causal ? i + 1 + c.shape.keys - c.shape.queries : c.shape.keys;
    count += static_cast<double>(c.window > 0 ? std::min(left, c.window) : left);
  }
  return count * static_cast<double>(c.shape.batch * c.shape.heads);
}

struct Tensors {
  Tensor q, k, v, output, grad, grad_q, grad_k, grad_v;
  std::vector<float> lse;
  static Tensor of_queries(const Case& c) {
    return {c.format, c.shape.batch, c.shape.heads, c.shape.queries, c.shape.channels};
  }
  static Tensor of_keys(const Case& c) {
    return {c.format, c.shape.batch, c.shape.groups, c.shape.keys, c.shape.channels};
  }
  explicit Tensors(const Case& c)
      : q(of_queries(c)),
        k(of_keys(c)),
        v(of_keys(c)),
        output(of_queries(c)),
        grad(of_queries(c)),
        grad_q(of_queries(c)),
        grad_k(of_keys(c)),
        grad_v(of_keys(c)),
        lse(static_cast<size_t>(c.shape.batch * c.shape.heads * c.shape.queries)) {}
};

AttentionForward forward_args(const Case& c, Tensors& t) {
  return {.shape = c.shape,
          .rules = {.scale = 1.0f / std::sqrt(static_cast<float>(c.shape.channels)),
                    .causal = c.causal ? Causal::kBottomRight : Causal::kNone,
                    .window = c.window,
                    .dropout = {.probability = c.dropout, .seed = 1}},
          .format = c.format,
          .q = t.q.input(),
          .k = t.k.input(),
          .v = t.v.input(),
          .cache_format = c.format,
          .output = t.output.output(),
          .lse = t.lse.data()};
}

AttentionBackward backward_args(const Case& c, Tensors& t) {
  return {.shape = c.shape,
          .rules = forward_args(c, t).rules,
          .format = c.format,
          .q = t.q.input(),
          .k = t.k.input(),
          .v = t.v.input(),
          .output = t.output.input(),
          .grad_output = t.grad.input(),
          .lse = t.lse.data(),
          .grad_q = t.grad_q.output(),
          .grad_k = t.grad_k.output(),
          .grad_v = t.grad_v.output()};
}

template <class Body>
void measure(benchmark::State& state, const Case& c, double operations, Body body) {
  const runtime::Isa isa = attention_isa(c.format, c.format);
  const auto measure_limit = isa == runtime::Isa::kAmx          ? measure_tile_limit
                             : isa == runtime::Isa::kAvx512Bf16 ? measure_bf16_limit
                                                                : measure_fp32_limit;
  bench::Rounds rounds;
  body();
  bench::repeat(state, [&] {
    const double before = measure_limit(0.002).rate(), start = process_cpu_seconds();
    body();
    const double time = process_cpu_seconds() - start;
    rounds.add(operations / time, (before + measure_limit(0.002).rate()) / 2);
    return time;
  });
  rounds.report(state, "GFLOP/s");
}

void run_forward(benchmark::State& state, Case c) {
  Tensors t(c);
  const AttentionForward args = forward_args(c, t);
  const double products = static_cast<double>(2 * (c.shape.channels + c.shape.value_channels));
  measure(state, c, products * pairs_seen(c), [&] { attention_forward(args); });
}

void run_backward(benchmark::State& state, Case c) {
  Tensors t(c);
  attention_forward(forward_args(c, t));
  const AttentionBackward args = backward_args(c, t);
  const double products = static_cast<double>(6 * c.shape.channels + 4 * c.shape.value_channels);
  measure(state, c, products * pairs_seen(c), [&] { attention_backward(args); });
}

// state.range(0) queries over a cache of [batch, groups, keys, channels].
void run_decode(benchmark::State& state, int64_t groups, Format cache_format) {
  const Case c = {{8, 12, groups, state.range(0), 4096, 64, 64}, Format::kBf16, true};
  const AttentionShape& s = c.shape;
  Tensors t(c);
  Tensor cache(cache_format, 2 * s.batch, s.groups, s.keys, s.channels);
  const std::vector<float> scales(static_cast<size_t>(s.batch * s.groups * s.keys), 0.5f);
  AttentionForward args = forward_args(c, t);
  const int64_t half = static_cast<int64_t>(cache.size / 2);
  const int64_t head = s.keys * s.channels;
  args.k = {cache.bytes.get(), s.groups * head, head, s.channels};
  args.v = {cache.bytes.get() + half, s.groups * head, head, s.channels};
  args.cache_format = cache_format;
  if (cache_format == Format::kE4m3) {
    args.k_scale = args.v_scale = {scales.data(), s.groups * s.keys, s.keys, 1};
  }
  bench::run(state, {cache.bytes.get(), 2 * half, nullptr, 0}, s.batch * s.groups * s.keys,
             [&] { attention_forward(args); });
}

// One query of each of state.range(0) requests of unlike lengths, over keys in pages of 32, in as many layers as make
// memory be read: SmolLM2's heads. A page has the keys and values of all layers, and the pages are drawn at random.
void run_pages(benchmark::State& state, Format cache_format) {
  constexpr int64_t kGroups = 3, kRows = 32, kChannels = 64, kPart = kGroups * kRows * kChannels;
  constexpr int64_t kLengths[] = {2100, 150, 900, 3500, 40, 1500, 600, 4000};
  std::vector<int64_t> lengths;
  int64_t pages = 0, keys = 0;
  for (int64_t i = 0; i < state.range(0); ++i) {
    lengths.push_back(kLengths[i % std::ssize(kLengths)]);
    pages += (lengths.back() + kRows - 1) / kRows;
    keys += lengths.back();
  }
  const int64_t key_bytes = 2 * kGroups * kChannels * format::bytes(cache_format);
  const int64_t layers = (int64_t{128} << 20) / (keys * key_bytes) + 1, page_stride = 2 * layers * kPart;
  Tensor cache(cache_format, pages, 1, 2 * layers * kGroups * kRows, kChannels);
  const std::vector<float> scales(static_cast<size_t>(pages * page_stride / kChannels), 0.5f);
  std::vector<int32_t> order(static_cast<size_t>(pages));
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), std::mt19937(1));
  std::vector<const int32_t*> numbers;
  for (const int32_t* place = order.data(); const int64_t length : lengths) {
    numbers.push_back(place);
    place += (length + kRows - 1) / kRows;
  }
  Case c = {{state.range(0), 9, kGroups, 1, std::ranges::max(lengths), kChannels, kChannels}, Format::kBf16, true};
  Tensor q(c.format, c.shape.batch, c.shape.heads, 1, kChannels), output = Tensors::of_queries(c);
  AttentionForward args = {.shape = c.shape,
                           .rules = {.scale = 0.125f, .causal = Causal::kBottomRight, .key_lengths = lengths.data()},
                           .format = c.format,
                           .q = q.input(),
                           .cache_format = cache_format,
                           .pages = {numbers.data(), kRows},
                           .output = output.output()};
  const auto part = [&](int64_t number) {
    return AttentionInput{cache.bytes.get() + number * kPart * format::bytes(cache_format), page_stride,
                          kRows * kChannels, kChannels};
  };
  const auto scale = [&](int64_t number) {
    return AttentionScale{scales.data() + number * kPart / kChannels, page_stride / kChannels, kRows, 1};
  };
  bench::run(state, {cache.bytes.get(), layers * keys * key_bytes, nullptr, 0}, layers * keys * kGroups, [&] {
    for (int64_t layer = 0; layer < layers; ++layer) {
      args.k = part(2 * layer);
      args.v = part(2 * layer + 1);
      if (cache_format == Format::kE4m3) {
        args.k_scale = scale(2 * layer);
        args.v_scale = scale(2 * layer + 1);
      }
      attention_forward(args);
    }
  });
}

std::string name_of(Format format) { return std::string(format::info(format).name); }

AttentionShape self_attention(int64_t batch, int64_t heads, int64_t tokens, int64_t channels) {
  return {batch, heads, heads, tokens, tokens, channels, channels};
}

const bool kRegistered = [] {
  struct Size {
    const char* name;
    AttentionShape shape;
  };
  for (const Size& size :
       {Size{"d64_t512", self_attention(8, 12, 512, 64)}, Size{"d128_t2048", self_attention(1, 16, 2048, 128)},
        Size{"d64_t256", self_attention(8, 6, 256, 64)}}) {
    for (Format format : {Format::kBf16, Format::kFp32}) {
      for (bool causal : {true, false}) {
        const Case c = {size.shape, format, causal};
        const std::string name = std::string(size.name) + (causal ? "/causal/" : "/full/") + name_of(format);
        bench::add("attention/forward/" + name, {}, run_forward, c);
        bench::add("attention/backward/" + name, {}, run_backward, c);
      }
    }
  }
  for (int64_t tokens : {1024, 2048, 4096, 8192}) {  // the cost of a token grows with their number, the share does not
    const Case c = {self_attention(1, 4, tokens, 64), Format::kBf16, true};
    const std::string name = "growth/d64_t" + std::to_string(tokens) + "/causal/bf16";
    bench::add("attention/forward/" + name, {}, run_forward, c);
    bench::add("attention/backward/" + name, {}, run_backward, c);
  }
  for (int64_t window : {0, 512}) {  // SmolLM2's heads
    for (Format format : {Format::kBf16, Format::kFp32}) {
      const Case c = {{1, 9, 3, 2048, 2048, 64, 64}, format, true, 0.0f, window};
      const std::string name =
          std::string("groups3_d64_t2048/") + (window == 0 ? "causal/" : "window512/") + name_of(format);
      bench::add("attention/forward/" + name, {}, run_forward, c);
      bench::add("attention/backward/" + name, {}, run_backward, c);
    }
  }
  const Case dropped = {self_attention(8, 12, 512, 64), Format::kBf16, true, 0.1f};
  bench::add("attention/forward/d64_t512/causal_dropout/bf16", {}, run_forward, dropped);
  bench::add("attention/backward/d64_t512/causal_dropout/bf16", {}, run_backward, dropped);
  for (Format cache : {Format::kBf16, Format::kE4m3}) {
    bench::add("attention/decode/" + name_of(cache), {1, 4, 8}, run_decode, 12, cache);
    bench::add("attention/decode/groups4/" + name_of(cache), {1}, run_decode, 4, cache);
    bench::add("attention/decode/pages/" + name_of(cache), {1, 4, 16, 64}, run_pages, cache);
  }
  return true;
}();

}  // namespace
}  // namespace plimsoll::kernels
