// A T5 whose texts lie in pages and share steps. An encoder's keys and values, which all tokens of a text read, lie in the
// first pages of the text, and the decoder's own begin at the next.
#pragma once

#include "plimsoll/models/paged_model.h"
#include "plimsoll/models/t5/load.h"
#include "plimsoll/models/t5/model.h"
#include "plimsoll/models/t5/team_step.h"

namespace plimsoll::models {

class PagedT5 final : public PagedModel {
 public:
  // In eval mode. Throws c10::ValueError for an encoder alone.
  explicit PagedT5(T5ForConditionalGeneration model);

  const T5Config& config() const { return model_->config; }
  int64_t context() const override { return kAnyContext; }
  std::optional<int64_t> decoder_start() const override { return config().decoder_start_token_id; }
  // Throws c10::ValueError for another format than kAsGiven.
  TokenCache make_cache(const TokenCacheOptions& options = {}) const override;
  int64_t prepare(TokenCache& cache) override;
  // Encoders read one prompt after another. Decoders share steps of a team; what it leaves to the layers
  // (T5TeamStep) is read text by text, with the same bits.
  at::Tensor extend_texts(std::span<const TextTokens> texts) override;

 private:
  void encode(const TextTokens& text);
  const T5DistanceBias& bias_for(int64_t keys);
  at::Tensor read(std::span<const TextTokens> texts);
  at::Tensor read_by_layers(const TextTokens& text);

  T5ForConditionalGeneration model_;
  T5DistanceBias bias_;
};

// Whether the directory's config.json is of a T5, mT5 or UMT5.
bool is_t5_directory(const std::filesystem::path& directory);

// Throws Error, as load_t5() does, and for an encoder alone. FP16 is computed with T5Fixes::seed(), but of a directory with
// a certificate of `plimsoll gauge` without fixes.
std::shared_ptr<PagedT5> load_paged_t5(const std::filesystem::path& directory, T5Dtype dtype, const Warn& warn);

}  // namespace plimsoll::models
