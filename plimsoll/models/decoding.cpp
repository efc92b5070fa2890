#include "plimsoll/models/decoding.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <utility>

#include "plimsoll/io/mapping_guard.h"
#include "plimsoll/models/next_token.h"

namespace plimsoll::models {

Decoding::Decoding(LanguageModel& model, DecodingOptions options)
    : model_(model), options_(std::move(options)), cache_(model.make_cache({.format = options_.cache})) {
  nn::check(options_.sampling);
}

int64_t Decoding::unread(size_t text) const {
  return static_cast<int64_t>(texts_[text].size()) - cache_.length(static_cast<int64_t>(text));
}

int64_t Decoding::begin(std::vector<std::vector<int64_t>> prompts, int64_t max_new_tokens) {
  TORCH_CHECK_VALUE(max_new_tokens >= 0, "generate: expected max_new_tokens >= 0, got ", max_new_tokens);
  int64_t places = 0;
  for (size_t i = 0; i < prompts.size(); ++i) {
    const auto length = static_cast<int64_t>(prompts[i].size());
    const int64_t read = length + std::max<int64_t>(max_new_tokens - 1, 0);  // the last token written is not read
    TORCH_CHECK_VALUE(length > 0, "generate: expected a token in each row, got none in row ", i);
    TORCH_CHECK_VALUE(read <= model_.context(), "generate: expected at most ", model_.context(),
                      " tokens, as many as the model can see, got ", length, " and max_new_tokens ", max_new_tokens);
    places = std::max(places, read);
  }
  bool goes_on = prompts.size() == texts_.size();
  for (size_t i = 0; goes_on && i < prompts.size(); ++i) {
    const int64_t read = cache_.length(static_cast<int64_t>(i));
    goes_on = unread(i) >= 0 && static_cast<int64_t>(prompts[i].size()) > read &&
              std::equal(prompts[i].begin(), prompts[i].begin() + read, texts_[i].begin());
  }
  if (!goes_on) cache_.clear();
  cache_.reserve(places);
  texts_ = std::move(prompts);
  ends_.assign(texts_.size(), std::nullopt);
  max_new_tokens_ = max_new_tokens;
  new_tokens_ = 0;
  int64_t count = 0;
  for (size_t i = 0; i < texts_.size(); ++i) count += unread(i);
  return count;
}

bool Decoding::done() const {
  return new_tokens_ >= max_new_tokens_ || std::ranges::all_of(ends_, [](const auto& end) { return end.has_value(); });
}

at::Tensor Decoding::read() {
  const auto count = static_cast<int64_t>(texts_.size());
  int64_t most = 1, fewest = model_.context();
  for (size_t i = 0; i < texts_.size(); ++i) {
    most = std::max(most, unread(i));
    fewest = std::min(fewest, std::max<int64_t>(unread(i), 1));
  }
  at::Tensor tokens = at::zeros({count, most}, at::kLong), is_token = at::zeros({count, most}, at::kBool);
  for (size_t i = 0; i < texts_.size(); ++i) {
    const int64_t row = static_cast<int64_t>(i) * most, there = unread(i);
    // A text that has ended goes on with token 0, which nobody hears.
    if (there > 0) std::copy(texts_[i].end() - there, texts_[i].end(), tokens.mutable_data_ptr<int64_t>() + row);
    std::fill_n(is_token.mutable_data_ptr<bool>() + row, std::max<int64_t>(there, 1), true);
  }
  const Extension extension{.attention_mask = most == fewest ? at::Tensor() : is_token};
  try {
    at::Tensor logits = model_.extend(tokens, cache_, extension).squeeze(1).contiguous();
    io::check_mapped_files();
    return logits;
  } catch (...) {
    cache_.clear();  // which may have got longer without the tokens
    throw;
  }
}

void Decoding::step(const std::function<bool(const NewToken&)>& sink) {
  const at::NoGradGuard no_grad;
  const at::Tensor logits = read();
  const int64_t vocabulary = logits.size(1);
  for (size_t i = 0; i < texts_.size(); ++i) {
    if (ends_[i]) continue;
    const auto text = static_cast<int64_t>(i);
    const std::span<const float> of_text(logits.const_data_ptr<float>() + text * vocabulary,
                                         static_cast<size_t>(vocabulary));
    if (!are_finite(of_text)) {
      ends_[i] = TextEnd::kNotFinite;
      continue;
    }
    std::optional<double> uniform;
    if (options_.uniform) uniform = options_.uniform(text, new_tokens_);
    std::vector<uint64_t> allowed;
    if (options_.allowed) allowed = options_.allowed(text);
    const int64_t token = next_token(of_text, {.text = texts_[i],
                                               .new_tokens = new_tokens_,
                                               .ends = options_.eos_token_ids,
                                               .rules = options_.rules,
                                               .sampling = options_.sampling,
                                               .allowed = allowed,
                                               .uniform = uniform});
    texts_[i].push_back(token);
    const bool ends = std::ranges::find(options_.eos_token_ids, token) != options_.eos_token_ids.end();
    if (ends) ends_[i] = TextEnd::kToken;
    if (sink && sink({text, token, ends, of_text}) && !ends) ends_[i] = TextEnd::kStop;
  }
  ++new_tokens_;
}

}  // namespace plimsoll::models
