// Examples as a run's data: packed into rows, which each epoch visits in an order of its own.
#pragma once

#include "plimsoll/app/finetune/pack_rows.h"
#include "plimsoll/app/text/example.h"
#include "plimsoll/app/train/training_data.h"

namespace plimsoll::app {

struct Packing {
  int64_t context = 0;  // tokens of a row
  bool packs = true;    // else each example is a row
  uint64_t seed = 1;    // of the order
};

class PackedExamples final : public TrainingData {
 public:
  // training: one example or more.
  PackedExamples(std::vector<Example> training, std::vector<Example> held_out, const Packing& packing);

  int64_t rows() const { return static_cast<int64_t>(rows_.size()); }
  // Examples in the order of the first epoch, or its beginning.
  std::vector<const Example*> first(size_t count) const;

  // Beginnings of examples, up to what the model is to learn: held-out ones, where there are any.
  std::vector<std::vector<int64_t>> prompts(size_t count) const;

  const std::string& digest() const override { return digest_; }
  TrainingStep next(const StepShape& shape) override;
  std::vector<TrainingBatch> held_out(int64_t batch) const override;
  nlohmann::json state() const override;
  void restore(const nlohmann::json& state) override;

 private:
  using Texts = std::vector<const Example*>;
  static Texts texts_of(const std::vector<Example>& examples, const std::vector<size_t>& row);
  Texts next_row();

  std::vector<Example> training_, held_out_;
  Packing packing_;
  Rows rows_, held_out_rows_;
  std::string digest_;
  int64_t epoch_ = 0, index_ = 0;  // of the next row
};

}  // namespace plimsoll::app
