#include "plimsoll/app/line/line_text.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <numeric>

#include "plimsoll/app/error.h"
#include "plimsoll/app/text/mapped_logits.h"
#include "plimsoll/gauge/calibration.h"
#include "plimsoll/io/mapping_guard.h"

namespace plimsoll::app {

LineText::LineText(const TextModel& exact, const TokenWindowOptions& options, const std::filesystem::path& folder)
    : windows_(read_token_windows(exact, options)) {
  const at::NoGradGuard no_grad;
  const int64_t vocabulary = vocabulary_of(*exact.model);
  if (windows_.size() < 2) {
    fail("{}: expected at least 2 windows of {} tokens, one to search with and one held out, got 1 of {}",
         options.data.native(), options.context.value_or(windows_.front().inputs.numel()),
         windows_.front().inputs.numel());
  }
  const int64_t all = tokens(TextPart::kSearch) + tokens(TextPart::kHeldOut);
  const at::Tensor memory = mapped_logits(folder / "reference_logits", all, vocabulary);
  gauge::Calibration calibration(*exact.model);
  int64_t first = 0;
  for (size_t i = 0; i < windows_.size(); ++i) {
    const at::Tensor inputs = windows_[i].inputs.unsqueeze(0);
    const at::Tensor logits = is_of(TextPart::kSearch, i) ? calibration.observe(inputs) : exact.model->logits(inputs);
    logits_.push_back(memory.narrow(0, first, inputs.numel()));
    logits_.back().copy_(logits.squeeze(0));
    first += inputs.numel();
    io::check_mapped_files();
  }
  amaxes_ = calibration.amaxes();
}

int64_t LineText::tokens(TextPart part) const {
  int64_t sum = 0;
  for (size_t i = 0; i < windows_.size(); ++i) {
    if (is_of(part, i)) sum += windows_[i].inputs.numel();
  }
  return sum;
}

std::vector<TokenWindow> LineText::windows(TextPart part) const {
  std::vector<TokenWindow> result;
  for (size_t i = 0; i < windows_.size(); ++i) {
    if (is_of(part, i)) result.push_back(windows_[i]);
  }
  return result;
}

LineText::Judged LineText::compare(const TextModel& model, TextPart part, size_t most_windows) const {
  const at::NoGradGuard no_grad;
  Judged result;
  for (size_t i = 0; i < windows_.size() && result.window_means.size() < most_windows; ++i) {
    if (!is_of(part, i)) continue;
    const size_t before = result.tokens.divergences().size();
    result.tokens.add(logits_of(model, windows_[i]), logits_[i], windows_[i].targets);
    const auto begin = result.tokens.divergences().begin() + static_cast<std::ptrdiff_t>(before);
    const auto end = result.tokens.divergences().end();
    result.window_means.push_back(std::accumulate(begin, end, 0.0) / static_cast<double>(end - begin));
    io::check_mapped_files();
  }
  return result;
}

}  // namespace plimsoll::app
