#include "plimsoll/app/checkpoint/quantize_model.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "plimsoll/app/checkpoint/product_inputs.h"
#include "plimsoll/app/checkpoint/quantize_source.h"
#include "plimsoll/app/error.h"
#include "plimsoll/app/new_directory.h"
#include "plimsoll/app/process/interrupt.h"
#include "plimsoll/app/run_directory.h"
#include "plimsoll/format/fp4_block.h"
#include "plimsoll/io/atomic_file.h"
#include "plimsoll/io/hugging_face_directory.h"
#include "plimsoll/io/mapping_guard.h"
#include "plimsoll/models/decoder/config_json.h"
#include "plimsoll/models/decoder/tensors.h"
#include "plimsoll/models/stored_codes.h"
#include "plimsoll/models/weight_files.h"
#include "plimsoll/ops/linear/decode_codes.h"
#include "plimsoll/ops/linear/error_feedback.h"
#include "plimsoll/ops/linear/fp4_codes.h"
#include "plimsoll/ops/linear/packed_weights.h"
#include "plimsoll/ops/tensor/scaled_tensor.h"
#include "plimsoll/runtime/unexpected.h"

namespace plimsoll::app {
namespace {

using models::CodeLayout;
using models::DecoderTensor;
using models::StoredPart;
using Scales = CodeLayout::Scales;

std::string module_of(const StoredPart& part) { return part.name.substr(0, part.name.rfind('.')); }

bool is_named(const std::string& module, const std::string& name) {
  return module == name || module.ends_with("." + name);
}

class ModelQuantizer {
 public:
  explicit ModelQuantizer(const QuantizeOptions& options)
      : options_(options), source_(options.model, options.rotate), layout_(models::layout_of(options.format)) {
    const at::Tensor embedding = source_.stored(source_.tensors().front().parts.front());
    const auto stored = models::read_config_dtype(source_.directory().config(), options.model.native());
    dtype_ = models::computed_in(options.dtype, stored.value_or(embedding.scalar_type()));
    if (!options.calibrate.empty()) check_calibration_tokens();
    choose();
  }

  QuantizeSummary write(const std::filesystem::path& directory) {
    const auto start = std::chrono::steady_clock::now();
    const InterruptScope interrupt;
    if (!options_.calibrate.empty()) calibrate(interrupt);
    models::WeightFiles files(directory, plans(), options_.shard_bytes);
    for (size_t i = 0; i < source_.tensors().size(); ++i) {
      interrupt.stop_if_requested("quantize");
      if (inputs_) follow(source_.tensors()[i].parameter);
      is_coded_[i] ? write_codes(source_.tensors()[i], files) : write_values(source_.tensors()[i], files);
      if (options_.on_parameter) {
        options_.on_parameter(static_cast<int64_t>(i + 1), static_cast<int64_t>(source_.tensors().size()));
      }
    }
    files.commit();
    models::copy_companions(options_.model, directory);
    write_config(directory);
    summary_.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    return summary_;
  }

 private:
  void check_calibration_tokens() const {
    const int64_t fewest = fewest_calibration_tokens(source_.config().context);
    if (options_.calibrate_tokens >= fewest) return;
    refuse("--calibrate-tokens: expected at least {}, got {}", fewest, options_.calibrate_tokens);
  }

  void calibrate(const InterruptScope& interrupt) {
    for (const DecoderTensor& tensor : source_.tensors()) {  // a model of other weights has no inputs to calibrate on
      for (const StoredPart& part : tensor.parts) {
        const std::string name = source_.there(part);
        source_.expect_finite(name, source_.stored(part));
        source_.directory().releaser(name)();
      }
    }
    inputs_.emplace(
        ProductInputsOptions{.model = options_.model, .data = options_.calibrate, .tokens = options_.calibrate_tokens});
    if (!source_.is_rotated()) return;  // the inputs are those of the model that is written
    for (const DecoderTensor& tensor : source_.tensors()) {
      interrupt.stop_if_requested("quantize");
      if (inputs_->has(tensor.parameter)) inputs_->replace(tensor.parameter, source_.parameter(tensor));
    }
  }

  // The blocks before that of the parameter have their codes' values, and inputs are those of its products.
  void follow(const std::string& parameter) {
    constexpr std::string_view kBlocks = "blocks.";
    if (!parameter.starts_with(kBlocks)) return;
    const size_t block = std::stoul(parameter.substr(kBlocks.size()));
    if (block_ == block) return;
    block_ ? inputs_->run(*block_) : inputs_->start();
    block_ = block;
    squares_ = inputs_->squares_of(block);
  }

  // Parameters whose matrices become codes: those that products under --dtype read as codes, without what is kept.
  void choose() {
    std::vector<bool> is_used(options_.keep.size(), false);
    const auto is_kept = [&](const StoredPart& part) {
      bool kept = false;
      for (size_t i = 0; i < options_.keep.size(); ++i) {
        if (!is_named(module_of(part), options_.keep[i])) continue;
        kept = is_used[i] = true;
      }
      return kept;
    };
    std::string example;  // a module that can be kept alone
    for (const DecoderTensor& tensor : source_.tensors()) {
      const bool is_product = tensor.shape.size() == 2 && tensor.parameter.starts_with("blocks.");
      const auto kept = std::ranges::count_if(tensor.parts, is_kept);
      const bool is_wide = source_.config().keeps_in_high_precision(tensor.parameter);
      is_coded_.push_back(is_product && kept == 0 && !is_wide);
      if (is_product && kept > 0 && kept < std::ssize(tensor.parts)) refuse_part(tensor);
      if (is_coded_.back()) check_shapes(tensor);
      if (is_product && tensor.parts.size() == 1) example = module_of(tensor.parts.front());
      if (is_product && !is_coded_.back()) {
        for (const StoredPart& part : tensor.parts) ignored_.push_back(module_of(part));
      }
    }
    const std::string head = models::head_module(source_.config());
    ignored_.push_back(head);
    for (size_t i = 0; i < is_used.size(); ++i) {
      if (!is_used[i] && !is_named(head, options_.keep[i])) {
        refuse("--keep: expected modules of the model, such as {}, got '{}'", example, options_.keep[i]);
      }
    }
    if (std::ranges::none_of(is_coded_, [](bool coded) { return coded; })) {
      refuse("--keep: expected that a matrix becomes codes, got all");
    }
  }

  [[noreturn]] static void refuse_part(const DecoderTensor& tensor) {
    std::string names;
    for (const StoredPart& part : tensor.parts) names += (names.empty() ? "" : ", ") + module_of(part);
    refuse("--keep: expected all or none of {}, which are multiplied at once, got some", names);
  }

  void check_shapes(const DecoderTensor& tensor) const {
    const std::string& name = tensor.parts.front().name;
    if (tensor.order == models::StoredOrder::kTransposed) {
      fail("{}: tensor '{}': expected a matrix that is stored as [out, in], got [in, out]", options_.model.native(),
           name);
    }
    const int64_t group = !layout_.is_e2m1() ? 1 : layout_.kind == ops::CodeKind::kNvfp4 ? 16 : 32;
    if (tensor.shape[1] % group != 0) {
      fail("{}: tensor '{}': expected a multiple of {} columns, got {}", options_.model.native(), name, group,
           tensor.shape[1]);
    }
  }

  // Tensors of a module with codes.
  struct CodePlan {
    io::TensorPlan codes, scale;
    std::optional<io::TensorPlan> global_scale;
  };
  CodePlan plan_of(const StoredPart& part) const {
    const std::string module = module_of(part);
    const int64_t rows = part.shape[0], cols = part.shape[1];
    CodePlan plan{.codes = {part.name, at::kFloat8_e4m3fn, {rows, cols}},
                  .scale = {module + "." + layout_.scale, at::kFloat, models::scale_shape(layout_, rows, cols)},
                  .global_scale = std::nullopt};
    if (!layout_.is_e2m1()) return plan;
    plan.codes = {module + ".weight_packed", at::kByte, {rows, cols / 2}};
    plan.scale.dtype = layout_.kind == ops::CodeKind::kNvfp4 ? at::kFloat8_e4m3fn : at::kByte;
    if (layout_.kind == ops::CodeKind::kNvfp4) plan.global_scale = {module + ".weight_global_scale", at::kFloat, {1}};
    return plan;
  }

  std::vector<io::TensorPlan> plans() {
    std::vector<io::TensorPlan> result;
    for (size_t i = 0; i < source_.tensors().size(); ++i) {
      for (const StoredPart& part : source_.tensors()[i].parts) {
        const at::Tensor before = source_.stored(part);
        if (!source_.is_new_head(part)) summary_.bytes_before += static_cast<int64_t>(before.nbytes());
        summary_.elements += before.numel();
        if (!is_coded_[i]) {
          result.push_back({part.name, dtype_, part.shape});
          continue;
        }
        const CodePlan plan = plan_of(part);
        const int64_t bytes = plan.codes.bytes() + plan.scale.bytes() + (plan.global_scale ? 4 : 0);
        summary_.coded_elements += before.numel();
        summary_.coded_bytes += bytes;
        summary_.matrices += 1;
        result.push_back(plan.codes);
        result.push_back(plan.scale);
        if (plan.global_scale) result.push_back(*plan.global_scale);
      }
    }
    for (const io::TensorPlan& plan : result) summary_.bytes_after += plan.bytes();
    return result;
  }

  void write_values(const DecoderTensor& tensor, models::WeightFiles& files) const {
    for (const StoredPart& part : tensor.parts) {
      const ops::CodeSource from = source_.read(tensor, part);
      const std::string name = source_.there(part);
      const at::Tensor rows = as_rows(from.weight);
      source_.expect_finite(name, rows);
      const at::Tensor values = rows.to(dtype_);
      if (!std::isfinite(ops::amax_of_sources({{.weight = values}}))) {
        fail("{}: tensor '{}': expected weights that {} holds, got larger ones",
             source_.directory().file_of(name).native(), name, models::config_dtype_name(dtype_));
      }
      files.write(part.name, values.reshape(part.shape));
      from.done();
    }
  }

  void write_codes(const DecoderTensor& tensor, models::WeightFiles& files) {
    std::vector<ops::CodeSource> sources;
    float amax = 0;  // of all parts, whose codes a product reads at once
    for (const StoredPart& part : tensor.parts) {
      sources.push_back(source_.read(tensor, part));
      const float each = ops::amax_of_sources({sources.back()});
      source_.expect_finite(source_.there(part), each);
      amax = std::max(amax, each);
    }
    const at::Tensor feedback = inputs_ ? ops::error_feedback(squares_.at(tensor.parameter)) : at::Tensor();
    std::vector<at::Tensor> values;  // of the codes, where inputs are to follow
    for (size_t i = 0; i < sources.size(); ++i) {
      const CodePlan plan = plan_of(tensor.parts[i]);
      values.push_back(layout_.is_e2m1() ? write_fp4(plan, sources[i], amax, feedback, files)
                                         : write_fp8(plan, sources[i], feedback, files));
      sources[i].done();
    }
    if (!inputs_) return;
    inputs_->replace(tensor.parameter, models::rows_of(at::cat(values), tensor.order, source_.config()));
    squares_.erase(tensor.parameter);
  }

  // The values of the codes, fp32, with feedback; undefined without it, where codes are nearest.
  at::Tensor write_fp8(const CodePlan& plan, const ops::CodeSource& source, const at::Tensor& feedback,
                       models::WeightFiles& files) const {
    const auto granularity = layout_.scales == Scales::kBlocks ? recipe::kBlock128x128 : recipe::kPerRow;
    const ops::ScaledTensor made = feedback.defined() ? ops::fp8_codes_with_feedback(source, granularity, feedback)
                                                      : ops::codes_of({source}, granularity);
    files.write(plan.codes.name, made.data.view(at::kFloat8_e4m3fn));
    files.write(plan.scale.name, made.scale.reshape(plan.scale.shape));
    return feedback.defined() ? ops::dequantize(made, at::kFloat) : at::Tensor();
  }

  // The same.
  at::Tensor write_fp4(const CodePlan& plan, const ops::CodeSource& source, float amax, const at::Tensor& feedback,
                       models::WeightFiles& files) const {
    const auto scaling =
        layout_.kind == ops::CodeKind::kNvfp4 ? format::Fp4Scaling::kNvfp4 : format::Fp4Scaling::kMxfp4;
    const ops::Fp4Codes made = feedback.defined() ? ops::fp4_codes_with_feedback(source, scaling, amax, feedback)
                                                  : ops::fp4_codes_of({source}, scaling, amax);
    files.write(plan.codes.name, made.codes);
    files.write(plan.scale.name, made.scale.view(plan.scale.dtype));
    if (plan.global_scale) {
      const float factor = format::Nvfp4::encode_scale(amax, scaling);
      files.write(plan.global_scale->name, at::full({1}, factor, at::kFloat));
    }
    if (!feedback.defined()) return {};
    return ops::decode_codes({{.stored = stored_codes(made)}}, layout_.kind, at::kFloat);
  }

  static ops::StoredCodes stored_codes(const ops::Fp4Codes& made) {
    const float tensor_scale = made.tensor_scale.defined() ? made.tensor_scale.item<float>() : 1.0f;
    return {.codes = made.codes, .scale = made.scale, .tensor_scale = tensor_scale};
  }

  void write_config(const std::filesystem::path& directory) const {
    nlohmann::json config = source_.directory().config();
    config.erase("torch_dtype");
    config["dtype"] = models::config_dtype_name(dtype_);
    if (source_.is_rotated() || !source_.config().ties_head) config["tie_word_embeddings"] = false;
    config["quantization_config"] = models::quantization_config_json(options_.format, ignored_);
    io::write_file(directory / "config.json", config.dump(2) + "\n");
  }

  const QuantizeOptions& options_;
  const QuantizeSource source_;
  const CodeLayout layout_;
  at::ScalarType dtype_ = at::kBFloat16;
  std::vector<bool> is_coded_;                 // of source_.tensors()
  std::vector<std::string> ignored_;           // linear modules that stay values
  std::optional<ProductInputs> inputs_;        // with --calibrate
  std::optional<size_t> block_;                // whose squares these are
  std::map<std::string, at::Tensor> squares_;  // by parameter
  QuantizeSummary summary_;
};

}  // namespace

QuantizeSummary quantize_model(const QuantizeOptions& options) {
  const at::NoGradGuard no_grad;
  expect_hugging_face_directory("--model", options.model);
  expect_free(options.out, "directory");
  ModelQuantizer quantizer(options);
  NewDirectory directory(options.out);
  const QuantizeSummary summary = quantizer.write(directory.partial());
  io::check_mapped_files();
  directory.commit();
  return summary;
}

}  // namespace plimsoll::app
