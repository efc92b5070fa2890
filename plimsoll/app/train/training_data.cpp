#include "plimsoll/app/train/training_data.h"

namespace plimsoll::app {

at::Tensor loss_of(models::LanguageModel& model, const TrainingBatch& batch, std::optional<bool> is_first_microbatch) {
  const models::PackedTexts& texts = batch.texts;
  if (texts.lengths.empty()) return model.loss(texts.tokens, texts.targets, is_first_microbatch);
  return model.packed_loss(texts, is_first_microbatch);
}

}  // namespace plimsoll::app
