#include "plimsoll/app/text/token_windows.h"

#include <ATen/ops/tensor.h>

#include <algorithm>

#include "plimsoll/amp/fp8_autocast.h"
#include "plimsoll/app/error.h"
#include "plimsoll/app/text/encoded_text.h"

namespace plimsoll::app {
namespace {

constexpr int64_t kUsualWindow = 512;

}  // namespace

int64_t usual_window(const TextModel& model) { return std::min(kUsualWindow, model.model->context()); }

std::vector<TokenWindow> read_token_windows(const TextModel& model, const TokenWindowOptions& options) {
  const int64_t most = model.model->context(), context = options.context.value_or(usual_window(model));
  if (context > most) refuse("--context: expected at most the {} tokens that the model sees, got {}", most, context);
  const EncodedText text({options.data}, *model.tokenizer);
  const int64_t count = std::min(options.tokens, text.count());
  if (count < options.fewest) {
    fail("{}: expected at least {} tokens, got {}", options.data.native(), options.fewest, text.count());
  }
  std::vector<TokenWindow> windows;
  for (int64_t begin = 0; begin + 1 < count; begin += context) {
    std::vector<int64_t> ids(static_cast<size_t>(std::min(context + 1, count - begin)));
    text.read(begin, ids);
    const at::Tensor window = at::tensor(ids);
    windows.push_back({.inputs = window.slice(0, 0, -1), .targets = window.slice(0, 1)});
  }
  return windows;
}

at::Tensor logits_of(const TextModel& model, const TokenWindow& window) {
  std::optional<amp::Fp8Autocast> scope;
  if (model.recipe) scope.emplace(amp::Fp8AutocastOptions{.recipe = *model.recipe});
  return model.model->logits(window.inputs.unsqueeze(0)).squeeze(0);
}

}  // namespace plimsoll::app
