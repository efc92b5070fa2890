#include "plimsoll/app/line/line_text.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <numeric>

#include "plimsoll/app/text/mapped_logits.h"
#include "plimsoll/io/mapping_guard.h"

namespace plimsoll::app {

LineText::LineText(LineModel& exact, const LineSubject& subject, const std::filesystem::path& folder,
                   const InterruptScope& interrupt)
    : subject_(subject), interrupt_(interrupt) {
  const at::NoGradGuard no_grad;
  const int64_t all = tokens(TextPart::kSearch) + tokens(TextPart::kHeldOut);
  const at::Tensor memory = mapped_logits(folder / "reference_logits", all, subject.vocabulary());
  int64_t first = 0;
  for (const at::Tensor& targets : subject.targets()) {
    logits_.push_back(memory.narrow(0, first, targets.numel()));
    first += targets.numel();
  }
  const UseLogits keep = [&](size_t sample, const at::Tensor& logits) {
    logits_[sample].copy_(logits);
    check();
  };
  exact.observe(samples(TextPart::kSearch), keep);
  exact.run(samples(TextPart::kHeldOut), keep);
}

void LineText::check() const {
  io::check_mapped_files();
  interrupt_.stop_if_requested("line");
}

int64_t LineText::tokens(TextPart part) const {
  int64_t sum = 0;
  for (const size_t sample : samples(part)) sum += subject_.targets()[sample].numel();
  return sum;
}

std::vector<size_t> LineText::samples(TextPart part) const {
  std::vector<size_t> result;
  for (size_t i = part == TextPart::kSearch ? 0 : 1; i < subject_.targets().size(); i += 2) result.push_back(i);
  return result;
}

LineText::Judged LineText::compare(LineModel& model, TextPart part, size_t most_samples) const {
  const at::NoGradGuard no_grad;
  std::vector<size_t> some = samples(part);
  some.resize(std::min(some.size(), most_samples));
  Judged result;
  model.run(some, [&](size_t sample, const at::Tensor& logits) {
    const size_t before = result.tokens.divergences().size();
    result.tokens.add(logits, logits_[sample], subject_.targets()[sample]);
    const auto begin = result.tokens.divergences().begin() + static_cast<std::ptrdiff_t>(before);
    const auto end = result.tokens.divergences().end();
    result.sample_means.push_back(std::accumulate(begin, end, 0.0) / static_cast<double>(end - begin));
    check();
  });
  return result;
}

}  // namespace plimsoll::app
