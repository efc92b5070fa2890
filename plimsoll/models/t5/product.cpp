#include "plimsoll/models/t5/product.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>

#include <algorithm>
#include <cmath>
#include <mutex>

#include "plimsoll/nn/precision.h"
#include "plimsoll/nn/report_values.h"
#include "plimsoll/ops/linear/no_kept_weights.h"
#include "plimsoll/ops/tensor/dtype.h"
#include "plimsoll/ops/tensor/quantize.h"
#include "plimsoll/ops/tensor/seen_tensors.h"
#include "plimsoll/watch/audit.h"
#include "plimsoll/watch/session.h"

namespace plimsoll::models {
namespace {

// Sessions that count, trap or follow need each product by itself.
bool watched_closely() {
  const watch::Session* session = watch::current();
  return session != nullptr && session->mode() != watch::Mode::kGuard;
}

// Gradients and recipes take each product by itself, too; inference tensors do not say when they change.
bool may_pack(const T5LinearImpl& layer, at::ScalarType dtype) {
  return !at::GradMode::is_enabled() && !ops::NoKeptWeights::is_in_force() &&
         !nn::scope_dtype(layer.weight().device().type()) && dtype == layer.weight().scalar_type() &&
         !layer.weight().is_inference() && !watched_closely();
}

// Whether the amax of several products that were one says too little about each of them.
bool worth_reading(const watch::Observation& all) {
  constexpr double kNearBits = 4;
  return watch::current()->sees_every_value() || !(watch::headroom_bits(all) >= kNearBits);
}

}  // namespace

// Safe to use from several threads.
class T5Product::Packed {
 public:
  using Weights = std::shared_ptr<const ops::PackedWeights>;

  void hold(Weights codes) {
    const std::lock_guard<std::mutex> lock(mutex_);
    held_ = std::move(codes);
  }
  Weights held() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return held_;
  }

  Weights codes(const std::vector<T5Linear>& layers) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (weights_ == nullptr) {
      std::vector<ops::CodeSource> sources;
      for (const T5Linear& layer : layers) sources.push_back(layer->code_source());
      weights_ = std::make_shared<const ops::PackedWeights>(sources, layers.front()->code_kind());
    }
    return weights_;
  }

  // nullptr in the first of two calls in a row that see the same weights: nothing is packed for one call.
  Weights values(const std::vector<T5Linear>& layers, bool is_step) {
    std::vector<at::Tensor> weights;
    for (const T5Linear& layer : layers) weights.push_back(layer->weight());
    const std::lock_guard<std::mutex> lock(mutex_);
    if (is_step && weights_ != nullptr && seen_.remembers(weights)) return weights_;
    if (!seen_.see(weights)) {
      weights_.reset();
    } else if (weights_ == nullptr) {
      weights_ = std::make_shared<const ops::PackedWeights>(weights);
      seen_.hold(weights);
    }
    return weights_;
  }

  void release() {
    const std::lock_guard<std::mutex> lock(mutex_);
    seen_.forget();
    weights_.reset();
  }

 private:
  std::mutex mutex_;
  ops::SeenTensors seen_;
  Weights weights_;
  Weights held_;
};

T5Product::T5Product(std::vector<T5Linear> layers) : layers_(std::move(layers)), packed_(std::make_shared<Packed>()) {}

void T5Product::hold(std::shared_ptr<const ops::PackedWeights> codes) { packed_->hold(std::move(codes)); }

std::shared_ptr<const ops::PackedWeights> T5Product::packed_for(at::ScalarType dtype, bool is_step) const {
  if (auto held = packed_->held()) return held;
  const auto is_quantized = [](const T5Linear& layer) { return layer->is_quantized(); };
  if (std::ranges::all_of(layers_, is_quantized)) return packed_->codes(layers_);
  if (std::ranges::any_of(layers_, is_quantized)) return nullptr;  // a plan has some of the weights in high precision
  if (may_pack(*layers_.front(), dtype)) return packed_->values(layers_, is_step);
  if (at::GradMode::is_enabled()) packed_->release();
  return nullptr;
}

at::Tensor T5Product::joined(const at::Tensor& x) const {
  if (const auto all = all_at_once(x)) return *all;
  if (layers_.size() == 1) return layers_.front()->forward(x);
  return at::cat(parts_of_layers(x), -1);
}

std::vector<at::Tensor> T5Product::parts(const at::Tensor& x) const {
  const auto all = all_at_once(x);
  return all ? parts_of(*all) : parts_of_layers(x);
}

std::optional<at::Tensor> T5Product::all_at_once(const at::Tensor& x) const {
  const auto packed = packed_for(x.scalar_type());
  if (packed == nullptr) return std::nullopt;
  const watch::AuditedLayer layer(layers_.front()->path());
  ops::PackedWeights::Output output = packed->multiply(x);
  if (watch::current() != nullptr) report(x, output);
  return std::move(output.values);
}

std::vector<at::Tensor> T5Product::parts_of(const at::Tensor& all) const {
  std::vector<at::Tensor> result;
  int64_t begin = 0;
  for (const T5Linear& layer : layers_) {
    result.push_back(all.narrow(-1, begin, layer->out_features));
    begin += layer->out_features;
  }
  return result;
}

// The product knows the amax of all layers together, which far from the format's end is told of each. Near it each
// layer's is read from its values, and where they were rounded to Inf the layer multiplies again, which tells how far
// beyond the format it was.
void T5Product::report(const at::Tensor& x, const ops::PackedWeights::Output& output) const {
  const at::ScalarType dtype = x.scalar_type();
  const float of_all = output.amax.read_on_host();
  if (layers_.size() == 1 || !worth_reading({.format = ops::format_of(dtype, "watch"), .amax = of_all})) {
    for (const T5Linear& layer : layers_) nn::report_amax(layer->path(), "output", dtype, of_all);
    return;
  }
  const std::vector<at::Tensor> parts = parts_of(output.values);
  for (size_t i = 0; i < parts.size(); ++i) {
    const float amax = ops::amax(parts[i].flatten(0, -2));
    const bool rounded_to_infinity = std::isinf(amax) && std::isfinite(of_all);
    if (rounded_to_infinity && layers_[i]->weight().numel() > 0) {
      layers_[i]->forward(x);
    } else {
      nn::report_amax(layers_[i]->path(), "output", dtype, amax);
    }
  }
}

std::vector<at::Tensor> T5Product::parts_of_layers(const at::Tensor& x) const {
  std::vector<at::Tensor> result;
  for (const T5Linear& layer : layers_) result.push_back(layer->forward(x));
  return result;
}

}  // namespace plimsoll::models
