#include "plimsoll/models/stacked_model.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/take_along_dim.h>

#include <algorithm>

#include "plimsoll/models/padding.h"
#include "plimsoll/nn/forward_hooks.h"
#include "plimsoll/nn/undrawn.h"
#include "plimsoll/ops/tensor/dtype.h"

namespace plimsoll::models {
namespace {

void make_room(TokenCache& cache, int64_t tokens, int64_t context) {
  const int64_t needed = cache.length() + tokens;
  if (needed > cache.capacity()) cache.reserve(std::max(needed, std::min(context, 2 * cache.capacity())));
}

// Tokens of the longest row. counts: as read() has them.
int64_t longest_of(const at::Tensor& tokens, const at::Tensor& counts) {
  return counts.defined() ? counts.max().item<int64_t>() : tokens.size(1);
}

// hidden [batch, seq, dim] with zeros behind, [batch, places, dim].
at::Tensor with_places(const at::Tensor& hidden, int64_t places) {
  return hidden.size(1) == places ? hidden : at::constant_pad_nd(hidden, {0, 0, 0, places - hidden.size(1)});
}

// Adds rows of a text, which join those of the text before if it has the same adapters.
void add_rows(std::vector<AdaptedRows>& all, const nn::LoraSet& adapters, int64_t first_row, int64_t rows) {
  if (!all.empty() && all.back().adapters == &adapters && all.back().first_row + all.back().rows == first_row) {
    all.back().rows += rows;
  } else {
    all.push_back({&adapters, first_row, rows});
  }
}

}  // namespace

void StackedModel::make_head(bool tied) {
  const int64_t vocabulary = token_embedding->weight.size(0), dim = token_embedding->weight.size(1);
  if (tied) {
    tied_head_ = LanguageHead::tied_state();
  } else {
    head = module().register_module(
        "head", nn::Linear(dim, vocabulary, nn::LinearOptions{.bias = false, .high_precision = true}));
  }
}

LanguageHead StackedModel::reader() const {
  if (!head.is_empty()) return {.own = head};
  return {.embedding = token_embedding->weight, .tied = tied_head_};
}

void StackedModel::draw_parameters(const Initial& initial, std::optional<at::Generator> generator) {
  if (nn::UndrawnParameters::are_wanted()) return;
  const at::NoGradGuard no_grad;
  for (const auto& parameter : module().named_parameters()) {
    at::Tensor tensor = parameter.value();
    const std::string& name = parameter.key();
    if (tensor.dim() == 2) {
      const bool writes_stream = name.ends_with("proj.weight") || name.ends_with("fc2_weight");
      tensor.normal_(0, writes_stream ? initial.stream_deviation : initial.deviation, generator);
    } else {
      tensor.fill_(name.ends_with("bias") ? 0 : initial.norm);
    }
  }
}

std::vector<LanguageModel::Unit> StackedModel::units() {
  std::vector<Unit> units;
  for (const auto& block : *blocks) units.push_back({block, &dynamic_cast<nn::BlockSwitches&>(*block).hooks});
  return units;
}

void StackedModel::checkpoint_activations(bool enabled) {
  for (const auto& block : *blocks) dynamic_cast<nn::BlockSwitches&>(*block).checkpoint_activations = enabled;
}

at::Tensor StackedModel::extend(const at::Tensor& tokens, TokenCache& cache, const Extension& extension) {
  TORCH_CHECK(cache.layers() == blocks->size(), "extend: expected a cache of ", blocks->size(), " layers, got ",
              cache.layers());
  TORCH_CHECK(tokens.dim() == 2 && tokens.size(1) > 0, "extend: expected tokens [batch, seq], one or more, got ",
              tokens.sizes());
  const at::NoGradGuard no_grad;
  const TokensFirst rows(tokens, extension.attention_mask);
  const at::Tensor& counts = rows.counts();
  TORCH_CHECK(!counts.defined() || counts.min().item<int64_t>() > 0,
              "extend: expected a token in each row of attention_mask, got none in row ",
              counts.argmin().item<int64_t>());
  make_room(cache, longest_of(tokens, counts), context());
  if (!counts.defined()) {
    if (at::Tensor logits = step(tokens, cache); logits.defined()) return logits;
  }
  const bool is_first = cache.length() == 0 && !extension.keeps_weights;
  at::Tensor hidden = read(rows.gathered(tokens), counts, cache, is_first);
  if (extension.all_logits) return rows.scattered(reader().logits(hidden, is_first).to(at::kFloat));
  hidden = counts.defined() ? hidden.take_along_dim((counts - 1).view({-1, 1, 1}), 1) : hidden.slice(1, -1);
  return reader().logits(hidden, is_first).to(at::kFloat);
}

at::Tensor StackedModel::read(const at::Tensor& tokens, const at::Tensor& counts, TokenCache& cache, bool is_first) {
  const int64_t batch = tokens.size(0), places = tokens.size(1);
  if (!cache.lengths().defined()) {
    const int64_t before = cache.length();
    const at::Tensor hidden =
        normalised(tokens.narrow(1, 0, longest_of(tokens, counts)), /*is_first_microbatch=*/is_first, &cache);
    if (counts.defined()) cache.set_lengths(counts + before);
    return with_places(hidden, places);
  }
  TORCH_CHECK(cache.lengths().size(0) == batch, "extend: expected a batch of ", cache.lengths().size(0), ", got ",
              batch);
  std::vector<at::Tensor> parts;
  for (int64_t begin = 0, end = 0; begin < batch; begin = end) {
    while (end < batch && cache.length(end) == cache.length(begin)) ++end;
    TokenCache texts = cache.texts(begin, end - begin);
    const at::Tensor group = tokens.slice(0, begin, end);
    const int64_t longest = longest_of(group, counts.defined() ? counts.slice(0, begin, end) : counts);
    const at::Tensor hidden = normalised(group.narrow(1, 0, longest), /*is_first_microbatch=*/false, &texts);
    parts.push_back(with_places(hidden, places));
  }
  cache.set_lengths(counts.defined() ? cache.lengths() + counts : cache.lengths() + places);
  return at::cat(parts);
}

std::optional<TeamStep> StackedModel::step_of(const at::Tensor& tokens, const StepPositions& positions,
                                              std::span<const AdaptedRows> adapted) {
  if (module().is_training() || !may_step()) return std::nullopt;
  for (const Unit& unit : units()) {
    if (unit.hooks->before) return std::nullopt;
  }
  const at::ScalarType dtype = token_embedding->weight.scalar_type();
  const StepLayers layers(dtype, tokens.numel(), adapted);
  TeamStep step{.tokens = tokens.contiguous(),
                .format = ops::format_of(dtype, "step"),
                .token_weight = token_embedding->weight,
                .norm = step_norm(norm)};
  if (!position_embedding.is_empty()) {
    const at::Tensor& weight = position_embedding->weight;
    step.position_weight =
        positions.each.defined() ? weight.index_select(0, positions.each) : weight.narrow(0, positions.first, 1);
  }
  describe(step, layers, positions);
  step.head = head.is_empty() ? layers.product(token_embedding->weight, {}, *tied_head_) : layers.product(head);
  if (!fits(step)) return std::nullopt;
  check_tokens({tokens.const_data_ptr<int64_t>(), static_cast<size_t>(tokens.numel())},
               token_embedding->weight.size(0));
  return step;
}

at::Tensor StackedModel::step(const at::Tensor& tokens, TokenCache& cache) {
  if (cache.length() >= context() || !may_follow(cache, tokens, token_embedding->weight.scalar_type())) return {};
  std::optional<TeamStep> step = step_of(tokens, {.first = cache.length(), .each = cache.lengths()});
  if (!step) return {};
  models::extend(cache, *step);
  return models::run(*step).unsqueeze(1).to(at::kFloat);
}

void StackedModel::check_text(const TextTokens& text) const {
  TokenCache& cache = text.cache;
  TORCH_CHECK(cache.layers() == blocks->size() && !cache.lengths().defined(),
              "extend: expected a cache of one text and ", blocks->size(), " layers, got ", cache.layers(), " layers");
  const auto count = static_cast<int64_t>(text.tokens.size());
  TORCH_CHECK(count > 0 && cache.length() + count <= context(), "extend: expected 1 to ", context() - cache.length(),
              " tokens, got ", count);
  check_tokens(text.tokens, token_embedding->weight.size(0));
}

at::Tensor StackedModel::step(std::span<const TextTokens> texts) {
  std::vector<int64_t> tokens, head_rows;
  std::vector<at::Tensor> positions;
  std::vector<TextCache> caches;
  std::vector<AdaptedRows> adapted;
  const nn::LoraSet* const in_force = nn::LoraScope::in_force();
  const nn::LoraScope by_rows(nullptr);
  for (const TextTokens& text : texts) {
    const auto count = static_cast<int64_t>(text.tokens.size()), before = text.cache.length();
    const nn::LoraSet* const adapters = text.adapters == nullptr ? in_force : text.adapters;
    if (adapters != nullptr) add_rows(adapted, *adapters, static_cast<int64_t>(tokens.size()), count);
    tokens.insert(tokens.end(), text.tokens.begin(), text.tokens.end());
    positions.push_back(at::arange(before, before + count, at::kLong));
    if (text.wants_logits) head_rows.push_back(static_cast<int64_t>(tokens.size()) - 1);
    caches.push_back({text.cache, count});
  }
  if (!share_pages(caches, token_embedding->weight.scalar_type())) return {};
  const at::Tensor rows = at::from_blob(tokens.data(), {static_cast<int64_t>(tokens.size())}, at::kLong);
  std::optional<TeamStep> step = step_of(rows, {.each = at::cat(positions)}, adapted);
  if (!step) return {};
  step->head_rows = std::move(head_rows);
  models::extend(caches, *step);
  return models::run(*step).to(at::kFloat);
}

at::Tensor StackedModel::extend_texts(std::span<const TextTokens> texts) {
  const at::NoGradGuard no_grad;
  int64_t rows = 0;
  for (const TextTokens& text : texts) {
    check_text(text);
    rows += static_cast<int64_t>(text.tokens.size());
  }
  for (const TextTokens& text : texts) make_room(text.cache, static_cast<int64_t>(text.tokens.size()), context());
  if (rows <= (texts.size() == 1 ? kMostStepRows : kMostTextRows)) {
    if (at::Tensor logits = step(texts); logits.defined()) return logits;
  }
  std::vector<at::Tensor> logits = {at::empty({0, token_embedding->weight.size(0)}, at::kFloat)};
  for (const TextTokens& text : texts) {
    const nn::LoraScope scope(text.adapters == nullptr ? nn::LoraScope::in_force() : text.adapters);
    at::Tensor row = at::empty({1, static_cast<int64_t>(text.tokens.size())}, at::kLong);
    std::copy(text.tokens.begin(), text.tokens.end(), row.mutable_data_ptr<int64_t>());
    const at::Tensor last = extend(row, text.cache, {.keeps_weights = true});
    if (text.wants_logits) logits.push_back(last.squeeze(1));
  }
  return at::cat(logits);
}

}  // namespace plimsoll::models
