#include "plimsoll/app/generate.h"

#include <algorithm>
#include <span>
#include <string_view>

#include "plimsoll/amp/fp8_autocast.h"
#include "plimsoll/app/trained_model.h"
#include "plimsoll/models/logits_rules.h"
#include "plimsoll/runtime/philox.h"
#include "plimsoll/tokenize/byte_tokenizer.h"

namespace plimsoll::app {
namespace {

// A trained model that reads bytes and predicts the next.
class Reader {
 public:
  explicit Reader(TrainedModel trained)
      : recipe_(trained.recipe), model_(std::move(trained.model)), cache_(model_->make_cache()) {}

  // The logits [vocabulary] of what follows everything read so far.
  at::Tensor read(std::string_view text) {
    seen_ += text;
    if (cache_.length() + static_cast<int64_t>(text.size()) > model_->context()) {
      const auto half = static_cast<size_t>(std::max<int64_t>(1, model_->context() / 2));
      if (seen_.size() > half) seen_.erase(0, seen_.size() - half);
      cache_.clear();
      text = seen_;
    }
    amp::Fp8Autocast scope({.recipe = recipe_});
    const at::Tensor logits = model_->extend(at::tensor(tokenize::ByteTokenizer().encode(text)).unsqueeze(0), cache_);
    return logits.select(1, logits.size(1) - 1).squeeze(0).contiguous();
  }

 private:
  recipe::Recipe recipe_;
  std::shared_ptr<models::LanguageModel> model_;
  models::TokenCache cache_;
  std::string seen_;
};

}  // namespace

std::optional<int64_t> generate(const GenerateOptions& options, const std::function<void(char)>& sink) {
  const at::NoGradGuard no_grad;
  Reader reader(load_trained_model(options.checkpoint));
  const runtime::Philox philox{.seed = static_cast<uint64_t>(options.seed)};
  std::string next = options.prompt.empty() ? "\n" : options.prompt;
  for (int64_t i = 0; i < options.tokens; ++i) {
    const at::Tensor logits = reader.read(next);
    const std::span<const float> scores(logits.const_data_ptr<float>(), tokenize::kByteVocabulary);
    if (!models::are_finite(scores)) return i;
    const double uniform = philox.word(static_cast<uint64_t>(i)) * 0x1p-32;
    next = tokenize::decode_byte(nn::sample(scores, options.sampling, uniform));
    sink(next.front());
  }
  return std::nullopt;
}

}  // namespace plimsoll::app
