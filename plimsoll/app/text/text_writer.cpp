#include "plimsoll/app/text/text_writer.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "plimsoll/amp/fp8_autocast.h"
#include "plimsoll/app/error.h"
#include "plimsoll/app/text/stop_texts.h"
#include "plimsoll/io/mapping_guard.h"
#include "plimsoll/runtime/philox.h"
#include "plimsoll/tokenize/decode_stream.h"

namespace plimsoll::app {
namespace {

double log_probability(std::span<const float> logits, int64_t token) {
  const double largest = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float logit : logits) sum += std::exp(logit - largest);
  return logits[static_cast<size_t>(token)] - largest - std::log(sum);
}

}  // namespace

TextWriter::TextWriter(const TextModel& model, WritingOptions options)
    : model_(model), options_(std::move(options)), cache_(model.model->make_cache({.format = options_.cache})) {}

at::Tensor TextWriter::read(std::span<const int64_t> tokens) {
  read_.insert(read_.end(), tokens.begin(), tokens.end());
  const int64_t context = model_.model->context();
  if (cache_.length() + static_cast<int64_t>(tokens.size()) > context) {
    const auto half = static_cast<size_t>(std::max<int64_t>(1, context / 2));
    if (read_.size() > half) read_.erase(read_.begin(), read_.end() - static_cast<int64_t>(half));
    cache_.clear();
    tokens = read_;
  }
  std::optional<amp::Fp8Autocast> scope;
  if (model_.recipe) scope.emplace(amp::Fp8AutocastOptions{.recipe = *model_.recipe});
  const at::Tensor ids = at::tensor(c10::IntArrayRef(tokens.data(), tokens.size())).unsqueeze(0);
  const at::Tensor logits = model_.model->extend(ids, cache_);
  io::check_mapped_files();
  return logits.flatten();
}

int64_t TextWriter::draw(std::span<const float> logits, int64_t new_tokens) {
  const runtime::Philox philox{.seed = static_cast<uint64_t>(options_.seed)};
  const double uniform = philox.word(draws_++) * 0x1p-32;
  if (options_.rules.change_nothing()) return nn::sample(logits, options_.sampling, uniform);
  std::vector<float> scores(logits.begin(), logits.end());
  models::apply(options_.rules, {.written = read_, .new_tokens = new_tokens}, scores);
  return nn::sample(scores, options_.sampling, uniform);
}

WrittenText TextWriter::write(const std::vector<int64_t>& prompt, const TextObserver& observer) {
  return write(prompt, observer, options_.max_new_tokens);
}

WrittenText TextWriter::write(const std::vector<int64_t>& prompt, const TextObserver& observer, int64_t limit) {
  if (prompt.empty()) refuse("prompt: expected at least one token, got none");
  const at::NoGradGuard no_grad;
  const bool goes_on = prompt.size() > read_.size() && std::equal(read_.begin(), read_.end(), prompt.begin());
  if (!goes_on) {
    cache_.clear();
    read_.clear();
  }
  std::vector<int64_t> next(prompt.begin() + static_cast<int64_t>(read_.size()), prompt.end());
  WrittenText written;
  written.read_tokens = static_cast<int64_t>(next.size());
  tokenize::DecodeStream stream(*model_.tokenizer);
  StopTexts stops(options_.stops);
  const auto show = [&](const std::string& text) {
    written.text += text;
    if (observer.on_text && !text.empty()) observer.on_text(text);
  };
  limit = std::min(limit, options_.max_new_tokens);
  for (; written.tokens < limit; ++written.tokens) {
    if (observer.interrupted && observer.interrupted()) {
      written.end = TextEnd::kInterrupted;
      break;
    }
    const at::Tensor logits = read(next);
    const std::span<const float> scores(logits.const_data_ptr<float>(), static_cast<size_t>(logits.numel()));
    if (!models::are_finite(scores)) {
      written.end = TextEnd::kNotFinite;
      break;
    }
    const int64_t token = draw(scores, written.tokens);
    if (observer.on_token) observer.on_token({token, log_probability(scores, token)});
    if (std::find(model_.ends.begin(), model_.ends.end(), token) != model_.ends.end()) {
      ++written.tokens;
      written.end = TextEnd::kToken;
      break;
    }
    show(stops.add(stream.next(token)));
    if (stops.reached()) {
      ++written.tokens;
      written.end = TextEnd::kStop;
      return written;
    }
    next = {token};
  }
  show(stops.add(stream.finish()));
  show(stops.finish());
  return written;
}

}  // namespace plimsoll::app
