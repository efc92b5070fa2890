#include "plimsoll/app/checkpoint/quantize_source.h"

#include <ATen/ops/cat.h>

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "plimsoll/app/error.h"
#include "plimsoll/models/decoder/load.h"
#include "plimsoll/models/stored_weight.h"
#include "plimsoll/ops/linear/fp4_codes.h"

namespace plimsoll::app {
namespace {

models::ResidualRotation rotation_of(const models::DecoderConfig& config) {
  constexpr uint64_t kSeed = 0;
  try {
    return models::ResidualRotation(config, kSeed);
  } catch (const std::invalid_argument& error) {
    refuse("--rotate: {}", error.what());
  }
}

}  // namespace

at::Tensor as_rows(const at::Tensor& weight) { return weight.dim() == 1 ? weight.unsqueeze(0) : weight; }

QuantizeSource::QuantizeSource(const std::filesystem::path& model, bool rotates)
    : directory_(model), config_(models::decoder_config(directory_)), codes_(directory_) {
  if (codes_.any()) {
    fail("{}: quantization_config: expected weights that are values, got codes", (model / "config.json").native());
  }
  models::check_decoder_tensors(directory_, codes_, config_);
  if (rotates) rotation_.emplace(rotation_of(config_));
  tensors_ = models::decoder_tensors(rotation_ ? rotation_->config() : config_);
}

bool QuantizeSource::is_new_head(const models::StoredPart& part) const {
  return config_.ties_head && part.name == models::head_module(config_) + ".weight";
}

std::string QuantizeSource::there(const models::StoredPart& part) const {
  const bool is_embedding = is_new_head(part);
  return models::name_there(codes_, config_, is_embedding ? tensors_.front().parts.front().name : part.name);
}

at::Tensor QuantizeSource::stored(const models::StoredPart& part) const {
  return models::stored_weight(directory_, there(part));
}

ops::CodeSource QuantizeSource::read(const models::DecoderTensor& tensor, const models::StoredPart& part) const {
  const std::string name = there(part);
  ops::CodeSource result = {.weight = stored(part), .done = directory_.releaser(name)};
  if (!rotation_) return result;
  expect_finite(name, result.weight);
  at::Tensor norm;
  if (const auto parameter = models::ResidualRotation::folded_norm(tensor.parameter)) {
    const auto is_norm = [&](const models::DecoderTensor& each) { return each.parameter == *parameter; };
    norm = stored(std::ranges::find_if(tensors_, is_norm)->parts.front());
  }
  result.weight = rotation_->rotated(tensor.parameter, result.weight, norm);
  return result;
}

at::Tensor QuantizeSource::parameter(const models::DecoderTensor& tensor) const {
  std::vector<at::Tensor> rows;
  for (const models::StoredPart& part : tensor.parts) {
    const ops::CodeSource from = read(tensor, part);
    expect_finite(there(part), from.weight);
    rows.push_back(models::rows_of(from.weight.to(at::kFloat), tensor.order, config_));
    from.done();
  }
  return rows.size() == 1 ? rows.front() : at::cat(rows);
}

void QuantizeSource::expect_finite(const std::string& name, const at::Tensor& weight) const {
  expect_finite(name, ops::amax_of_sources({{.weight = as_rows(weight)}}));
}

void QuantizeSource::expect_finite(const std::string& name, float amax) const {
  if (std::isfinite(amax)) return;
  fail("{}: tensor '{}': expected finite weights, got {}", directory_.file_of(name).native(), name,
       std::isnan(amax) ? "NaN" : "Inf");
}

}  // namespace plimsoll::app
