#include "plimsoll/app/checkpoint/product_inputs.h"

#include <ATen/ops/zeros.h>

#include <algorithm>
#include <utility>

#include "plimsoll/app/error.h"
#include "plimsoll/app/text/text_model.h"
#include "plimsoll/app/text/token_windows.h"
#include "plimsoll/nn/held_codes.h"
#include "plimsoll/nn/observed_inputs.h"
#include "plimsoll/ops/linear/error_feedback.h"
#include "plimsoll/ops/linear/no_kept_weights.h"

namespace plimsoll::app {
namespace {

constexpr int64_t kWindow = 512;

}  // namespace

int64_t fewest_calibration_tokens(int64_t context) { return std::min(kWindow, context) + 1; }

ProductInputs::ProductInputs(const ProductInputsOptions& options) : options_(options) {
  const TextModel text = load_text_model({.path = options.model, .dtype = models::WeightDtype::kFp32});
  model_ = std::dynamic_pointer_cast<models::DecoderImpl>(text.model);
  const int64_t fewest = fewest_calibration_tokens(model_->context());
  for (const TokenWindow& each : read_token_windows(
           text, {.data = options.data, .context = fewest - 1, .tokens = options.tokens, .fewest = fewest})) {
    windows_.push_back(each.inputs.unsqueeze(0));
  }
  for (const nn::ProductWeight& product : nn::weights_with_codes(*model_)) {
    weights_.emplace(product.state->name, product.name);
  }
}

bool ProductInputs::has(const std::string& parameter) const { return model_->named_parameters().contains(parameter); }

void ProductInputs::replace(const std::string& parameter, const at::Tensor& values) {
  model_->named_parameters()[parameter].set_data(values);  // not into memory that may be a file's
}

void ProductInputs::start() {
  streams_.clear();
  for (const at::Tensor& tokens : windows_) streams_.push_back(model_->first_stream(tokens));
}

std::map<std::string, at::Tensor> ProductInputs::squares_of(size_t block) {
  std::map<std::string, at::Tensor> result;
  const ops::NoKeptWeights no_kept_weights;
  const nn::ObservedInputs observed([&](const std::string& product, const at::Tensor& x) {
    const auto weight = weights_.find(product);
    if (weight == weights_.end()) return;  // in high precision
    const at::Tensor squares = ops::input_squares(x);
    const auto [sum, is_first] = result.try_emplace(weight->second, squares);
    if (!is_first) sum->second.add_(squares);
  });
  for (const nn::ResidualStream& stream : streams_) model_->run_block(block, stream);
  for (const auto& [weight, squares] : result) {
    if (squares.isfinite().all().item<bool>()) continue;
    fail("{}: expected finite inputs of {} on {}, got Inf or NaN", options_.model.native(), weight,
         options_.data.native());
  }
  return result;
}

void ProductInputs::run(size_t block) {
  const ops::NoKeptWeights no_kept_weights;
  for (nn::ResidualStream& stream : streams_) stream = model_->run_block(block, std::move(stream));
}

}  // namespace plimsoll::app
