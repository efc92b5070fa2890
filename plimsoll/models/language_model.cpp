#include "plimsoll/models/language_model.h"

#include <ATen/ops/zeros.h>

namespace plimsoll::models {

int64_t LanguageModel::prepare(TokenCache& cache) { return extend(at::zeros({1, 1}, at::kLong), cache).size(2); }

at::Tensor LanguageModel::packed_loss(const PackedTexts& texts, std::optional<bool> is_first_microbatch) {
  const auto all = static_cast<double>(texts.counted());
  at::Tensor mean;
  int64_t begin = 0;
  for (const int64_t length : texts.lengths) {
    const at::Tensor targets = texts.targets.narrow(1, begin, length);
    const auto counted = static_cast<double>((targets != kNoTarget).sum().item<int64_t>());
    if (counted > 0) {
      const at::Tensor part =
          loss(texts.tokens.narrow(1, begin, length), targets, is_first_microbatch) * (counted / all);
      mean = mean.defined() ? mean + part : part;
      if (is_first_microbatch) is_first_microbatch = false;
    }
    begin += length;
  }
  return mean;
}

}  // namespace plimsoll::models
