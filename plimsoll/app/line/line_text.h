// Samples of `plimsoll line`, with what FP32 makes of them: half to search with, the others held out.
#pragma once

#include <ATen/core/TensorBody.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <vector>

#include "plimsoll/app/line/line_model.h"
#include "plimsoll/app/process/interrupt.h"
#include "plimsoll/app/text/token_comparison.h"

namespace plimsoll::app {

enum class TextPart : uint8_t { kSearch, kHeldOut };

class LineText {
 public:
  // exact: the subject in FP32, which observes the samples to search with. folder: of a file with its logits, which no
  // name is left of. The subject must outlive it, and so must `interrupt`, which ends a pass behind a sample.
  LineText(LineModel& exact, const LineSubject& subject, const std::filesystem::path& folder,
           const InterruptScope& interrupt);

  int64_t tokens(TextPart part) const;
  // Every other one; the first serves to search.
  std::vector<size_t> samples(TextPart part) const;

  struct Judged {
    TokenComparison tokens;
    std::vector<double> sample_means;  // of the divergences, nats
  };
  // At most so many samples are read.
  Judged compare(LineModel& model, TextPart part, size_t most_samples = SIZE_MAX) const;

 private:
  void check() const;

  const LineSubject& subject_;
  const InterruptScope& interrupt_;
  std::vector<at::Tensor> logits_;  // fp32 [tokens, vocabulary] of each sample
};

}  // namespace plimsoll::app
