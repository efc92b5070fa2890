// The windows of a long text as a run's data: `plimsoll train`.
#pragma once

#include "plimsoll/app/train/training_data.h"
#include "plimsoll/io/token_stream.h"

namespace plimsoll::app {

class TextWindows final : public TrainingData {
 public:
  // held_out: windows in an evaluation, at most.
  TextWindows(io::TokenStream stream, int64_t held_out);

  const std::string& digest() const override { return stream_.digest(); }
  TrainingStep next(const StepShape& shape) override;
  std::vector<TrainingBatch> held_out(int64_t batch) const override;
  nlohmann::json state() const override;
  void restore(const nlohmann::json& state) override;

 private:
  TrainingBatch batch_of(const at::Tensor& windows) const;

  io::TokenStream stream_;
  int64_t held_out_;
};

}  // namespace plimsoll::app
