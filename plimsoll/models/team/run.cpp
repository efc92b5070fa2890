#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cstring>
#include <type_traits>
#include <utility>

#include "plimsoll/kernels/embedding/embedding.h"
#include "plimsoll/models/team/heads.h"
#include "plimsoll/models/team/step.h"
#include "plimsoll/models/team/values.h"
#include "plimsoll/nn/precision.h"
#include "plimsoll/ops/tensor/dtype.h"
#include "plimsoll/runtime/team.h"
#include "plimsoll/runtime/threads.h"
#include "plimsoll/watch/audit.h"
#include "plimsoll/watch/profile.h"
#include "plimsoll/watch/session.h"

namespace plimsoll::models {
namespace {

constexpr int64_t kAlignment = 64;  // bytes

// Widths that decide how much memory a step takes: of one row, in elements.
struct Widths {
  int64_t dim = 0;        // of the residual stream
  int64_t projected = 0;  // what attention projects, or a feed-forward part before its activation
  int64_t read = 0;       // what attention reads
  int64_t inner = 0;      // of a feed-forward part after its activation
  int64_t heads = 0;      // elements of queries that norms and rotary positions rewrite
  int64_t norm = 0;       // of the widest norm
  // FP32 numbers of adapters: x A^T of all rows, and of a thread's sums.
  int64_t low_rank = 0, low_rank_sums = 0;

  explicit Widths(const TeamStep& step) : dim(step.token_weight.size(1)), norm(step.norm.cols()) {
    for (const StepLayer& layer : step.layers) {
      norm = std::max({norm, layer.norm.cols(), layer.branch_norm.cols()});
      std::visit([&](const auto& part) { add(part); }, layer.part);
    }
  }

 private:
  void add(const StepAttention& part) {
    projected = std::max(projected, part.in.columns());
    add(part.in);
    add(part.out);
    read = std::max(read, part.call.shape.heads * part.call.shape.channels);
    norm = std::max({norm, part.query_norm.cols(), part.key_norm.cols()});
    if (part.query_norm.defined() || part.rotary.cosine.defined()) heads = std::max(heads, read);
  }
  void add(const StepFeedForward& part) {
    projected = std::max(projected, part.up.columns());
    add(part.up);
    add(part.down);
    inner = std::max(inner, part.down.weight.data.size(1));
  }
  void add(const StepProduct& product) {
    if (product.adapters.empty()) return;
    low_rank = std::max(low_rank, inner_size(product.adapters));
    low_rank_sums = std::max(low_rank_sums, StepColumns::kWideRows * product.columns());
  }
};

// Scratch memory of one thread.
struct Own {
  char* hidden;  // the residual stream
  char* sum;     // and with what is added to it
  char* x;       // what a norm made
  char* inner;   // what an activation made
  char* branch;  // what is added to it: of a norm, or of two parts
  char* before;  // what the part before adds
  float* sums;   // of adapters
  HeadScratch heads;
};

class Run {
 public:
  explicit Run(const TeamStep& step)
      : step_(step), widths_(step), rows_(step.tokens.numel()), size_(format::bytes(step.format)) {
    place_buffers();
  }

  void follow(const runtime::Team& team, void* logits) const {
    Own own = own_[static_cast<size_t>(team.index())];
    embed(own);
    const char* added = nullptr;  // to the stream, by the next norm
    for (const StepLayer& layer : step_.layers) {
      if (layer.joins_before) std::memcpy(own.before, added, static_cast<size_t>(rows_ * widths_.dim * size_));
      normalise(own, layer.norm, layer.joins_before ? nullptr : added);
      std::visit([&](const auto& part) { compute(team, own, part); }, layer.part);
      added = out_;
      if (layer.branch_norm.defined()) {
        normalise_rows(layer.branch_norm, {.x = out_, .y = own.branch}, own);
        added = own.branch;
      }
      if (layer.joins_before) {
        add(added, own.before, own.branch);
        added = own.branch;
      }
    }
    normalise(own, step_.norm, added);
    multiply_by(step_.head_factor, own.x);
    if (step_.head_rows) gather(*step_.head_rows, own.x);
    multiply(team, own, step_.head, {.x = own.x, .values = logits, .count = head_count(), .format = step_.format});
  }

  int64_t head_count() const { return step_.head_rows ? static_cast<int64_t>(step_.head_rows->size()) : rows_; }

 private:
  void place_buffers() {
    int64_t bytes = 0;
    const auto place_bytes = [&](int64_t count) {
      const int64_t at = bytes;
      bytes += (count + kAlignment - 1) / kAlignment * kAlignment;
      return at;
    };
    const auto place = [&](int64_t columns, int64_t size) { return place_bytes(rows_ * columns * size); };
    constexpr int64_t kFloat = sizeof(float);
    const int64_t projected = place(widths_.projected, size_), read = place(widths_.read, size_),
                  out = place(widths_.dim, size_), low_rank = place_bytes(widths_.low_rank * kFloat), first = bytes;
    const int64_t hidden = place(widths_.dim, size_), sum = place(widths_.dim, size_), x = place(widths_.dim, size_),
                  inner = place(widths_.inner, size_), branch = place(widths_.dim, size_),
                  before = place(widths_.dim, size_), normed = place(widths_.heads, size_),
                  turned = place(widths_.heads, size_), norm = place(2 * widths_.norm, kFloat),
                  sums = place_bytes(widths_.low_rank_sums * kFloat), each = bytes - first;
    const int threads = runtime::threads();
    memory_ = at::empty({first + threads * each}, at::kByte);
    char* base = static_cast<char*>(memory_.mutable_data_ptr());
    projected_ = base + projected;
    read_ = base + read;
    out_ = base + out;
    low_rank_ = reinterpret_cast<float*>(base + low_rank);
    for (int i = 0; i < threads; ++i, base += each) {
      own_.push_back({base + hidden,
                      base + sum,
                      base + x,
                      base + inner,
                      base + branch,
                      base + before,
                      reinterpret_cast<float*>(base + sums),
                      {base + normed, base + turned, reinterpret_cast<float*>(base + norm)}});
    }
  }

  void embed(const Own& own) const {
    const at::Tensor& positions = step_.position_weight;
    const int64_t places = positions.defined() ? positions.size(0) : 1;
    kernels::embedding_forward({.shape = {.batch = rows_ / places, .seq = places, .dim = widths_.dim},
                                .tokens = step_.tokens.const_data_ptr<int64_t>(),
                                .token_weight = step_.token_weight.const_data_ptr(),
                                .position_weight = positions.defined() ? positions.const_data_ptr() : nullptr,
                                .weight_format = ops::format_of(step_.token_weight.scalar_type(), "step"),
                                .output = own.hidden,
                                .output_format = step_.format});
    multiply_by(step_.embedding_factor, own.hidden);
  }

  // values [rows, dim], as torch multiplies them by a number.
  void multiply_by(double factor, void* values) const {
    if (factor == 1) return;
    with_values(step_.format, values, [&](const auto* x) {
      using Value = std::remove_const_t<std::remove_pointer_t<decltype(x)>>;
      std::transform(x, x + rows_ * widths_.dim, static_cast<Value*>(values), [&](auto value) {
        return static_cast<Value>(static_cast<float>(value) * static_cast<float>(factor));
      });
    });
  }

  // sum [rows, dim] of two such, which may be one of them.
  void add(const char* a, const char* b, char* sum) const {
    with_values(step_.format, a, [&](const auto* x) {
      using Value = std::remove_const_t<std::remove_pointer_t<decltype(x)>>;
      const auto* y = reinterpret_cast<const Value*>(b);
      std::transform(x, x + rows_ * widths_.dim, y, reinterpret_cast<Value*>(sum), [](auto left, auto right) {
        return static_cast<Value>(static_cast<float>(left) + static_cast<float>(right));
      });
    });
  }

  void normalise_rows(const StepNorm& norm, kernels::NormForward args, const Own& own) const {
    args.rows = rows_;
    args.x_format = args.y_format = step_.format;
    norm.run(args, own.heads.norm_weight);
  }

  // own.x, of the stream after what is added to it.
  void normalise(Own& own, const StepNorm& norm, const char* added) const {
    normalise_rows(norm, {.x = own.hidden, .residual = added, .sum = added == nullptr ? nullptr : own.sum, .y = own.x},
                   own);
    if (added != nullptr) std::swap(own.hidden, own.sum);
  }

  // The rows of x [rows, dim] to its first ones.
  void gather(const std::vector<int64_t>& rows, char* x) const {
    const auto bytes = static_cast<size_t>(widths_.dim * size_);
    for (size_t i = 0; i < rows.size(); ++i)
      std::memmove(x + i * bytes, x + static_cast<size_t>(rows[i]) * bytes, bytes);
  }

  void multiply(const runtime::Team& team, const Own& own, const StepProduct& product, const void* x,
                void* values) const {
    multiply(team, own, product, {.x = x, .values = values, .count = rows_, .format = step_.format});
  }

  void multiply(const runtime::Team& team, const Own& own, const StepProduct& product, const StepRows& rows) const {
    const std::vector<StepLowRank>& adapters = product.adapters;
    project(adapters, rows, low_rank_, team.index(), team.size());
    if (rows.count > 0) product.multiply(rows, team.index(), team.size());
    if (!adapters.empty()) {
      team.wait();
      const auto [begin, end] = product.part(team.index(), team.size());
      add_low_rank(adapters, rows, low_rank_,
                   {.begin = begin, .end = end, .stride = product.columns(), .wide = own.sums});
    }
    team.wait();
  }

  void compute(const runtime::Team& team, const Own& own, const StepAttention& part) const {
    multiply(team, own, part.in, own.x, projected_);
    const StepHeads heads(part, projected_, read_);
    heads.attend(heads.first_of(team.index(), team.size()), heads.first_of(team.index() + 1, team.size()), own.heads);
    team.wait();
    multiply(team, own, part.out, read_, out_);
  }

  void compute(const runtime::Team& team, const Own& own, const StepFeedForward& part) const {
    multiply(team, own, part.up, own.x, projected_);
    kernels::activation_forward({.activation = part.activation,
                                 .rows = rows_,
                                 .cols = part.down.weight.data.size(1),
                                 .x = projected_,
                                 .x_format = step_.format,
                                 .y = own.inner,
                                 .y_format = step_.format});
    multiply(team, own, part.down, own.inner, out_);
  }

  const TeamStep& step_;
  const Widths widths_;
  const int64_t rows_, size_;  // bytes of an element
  at::Tensor memory_;
  std::vector<Own> own_;
  char *projected_ = nullptr, *read_ = nullptr, *out_ = nullptr;  // what all write, each its part
  float* low_rank_ = nullptr;                                     // likewise
};

format::Format format_of(const at::Tensor& cached, const at::Tensor& scale) {
  return scale.defined() ? format::Format::kE4m3 : ops::format_of(cached.scalar_type(), "step");
}

// Places of token `last`, or of each row's own.
StepPlaces places_of(const at::Tensor& cached, const at::Tensor& scale, int64_t last, const at::Tensor& tokens) {
  const int64_t token = tokens.defined() ? 0 : last;
  char* elements = static_cast<char*>(cached.mutable_data_ptr()) + token * cached.stride(1) * cached.element_size();
  StepPlaces places = {.elements = {elements, cached.stride(0), cached.stride(2), cached.stride(1)},
                       .format = format_of(cached, scale),
                       .tokens = tokens.defined() ? tokens.const_data_ptr<int64_t>() : nullptr};
  if (!scale.defined()) return places;
  places.scale = scale.mutable_data_ptr<float>() + token * scale.stride(2);
  places.scale_row_stride = scale.stride(0);
  places.scale_group_stride = scale.stride(1);
  places.scale_token_stride = scale.stride(2);
  return places;
}

// [batch, tokens, groups, channels].
kernels::AttentionInput cached_heads(const at::Tensor& cached) {
  return {cached.const_data_ptr(), cached.stride(0), cached.stride(2), cached.stride(1)};
}

kernels::AttentionScale cached_scales(const at::Tensor& scale) {
  if (!scale.defined()) return {};
  return {scale.const_data_ptr<float>(), scale.stride(0), scale.stride(1), scale.stride(2)};
}

void read(const nn::CachedTokens& tokens, kernels::AttentionForward& call) {
  call.k = cached_heads(tokens.key);
  call.v = cached_heads(tokens.value);
  call.k_scale = cached_scales(tokens.key_scale);
  call.v_scale = cached_scales(tokens.value_scale);
  call.cache_format = format_of(tokens.key, tokens.key_scale);
}

}  // namespace

void StepAttention::extend(nn::KeyValueCache& cache, const StepLengths& lengths) {
  const nn::CachedTokens& tokens = cache.grow(1);
  const int64_t last = cache.length() - 1;
  call.shape.keys = cache.length();
  read(tokens, call);
  call.rules.key_lengths = lengths.after.defined() ? lengths.after.const_data_ptr<int64_t>() : nullptr;
  key = places_of(tokens.key, tokens.key_scale, last, lengths.before);
  value = places_of(tokens.value, tokens.value_scale, last, lengths.before);
}

void StepAttention::extend(nn::KeyValueCache& cache, const StepTexts& step_texts) {
  const nn::CachedTokens& pages = cache.grow(0);
  read(pages, call);
  call.pages.rows = pages.key.size(1);
  key = places_of(pages.key, pages.key_scale, 0, {});
  value = places_of(pages.value, pages.value_scale, 0, {});
  texts = &step_texts;
}

bool may_step() { return watch::current() == nullptr && watch::auditing() == nullptr && !nn::scope_dtype(at::kCPU); }

bool fits(const TeamStep& step) {
  const auto part_fits = [](const StepLayer& layer) {
    if (const auto* attention = std::get_if<StepAttention>(&layer.part)) {
      return attention->in.fits() && attention->out.fits();
    }
    const auto& part = std::get<StepFeedForward>(layer.part);
    return part.up.fits() && part.down.fits();
  };
  return step.head.fits() && std::all_of(step.layers.begin(), step.layers.end(), part_fits);
}

void check_tokens(std::span<const int64_t> tokens, int64_t vocabulary) {
  for (const int64_t id : tokens) {
    TORCH_CHECK(id >= 0 && id < vocabulary, "embedding: expected tokens from 0 to ", vocabulary - 1, ", got ", id);
  }
}

at::Tensor run(const TeamStep& step) {
  const Run run(step);
  at::Tensor logits =
      at::empty({run.head_count(), step.head.columns()}, at::TensorOptions().dtype(ops::dtype_of(step.format)));
  void* values = logits.mutable_data_ptr();
  const watch::Span span("team step");
  runtime::run_team([&](const runtime::Team& team) { run.follow(team, values); });
  return logits;
}

}  // namespace plimsoll::models
