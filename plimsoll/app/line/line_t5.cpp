#include <ATen/ops/tensor.h>
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <utility>

#include "plimsoll/app/error.h"
#include "plimsoll/app/gauge/gauge_rewrite.h"
#include "plimsoll/app/line/line_subjects.h"
#include "plimsoll/app/t5/t5_examples.h"
#include "plimsoll/app/t5/t5_inputs.h"
#include "plimsoll/gauge/t5_calibration.h"
#include "plimsoll/models/t5/freedoms.h"
#include "plimsoll/models/t5/generation.h"
#include "plimsoll/models/t5/load.h"
#include "plimsoll/models/t5/read_config.h"

namespace plimsoll::app {
namespace {

namespace fs = std::filesystem;
using models::WeightDtype;
using nlohmann::json;

constexpr size_t kBatch = 8;                // samples at a time
constexpr int64_t kMostWrittenTokens = 32;  // where there is no target, as ParityOptions::max_new_tokens

struct T5Sample {
  std::vector<int64_t> input, decoder_input;
};

// Columns of the rows of `table` that are read together, padded.
T5Batch batch_of(std::span<const size_t> samples, const std::vector<T5Sample>& table,
                 std::vector<int64_t> T5Sample::*column, int64_t pad) {
  std::vector<std::vector<int64_t>> rows;
  for (const size_t sample : samples) rows.push_back(table[sample].*column);
  return t5_batch(rows, 0, rows.size(), pad);
}

class T5LineModel : public LineModel {
 public:
  T5LineModel(models::T5ForConditionalGeneration model, const std::vector<T5Sample>& samples)
      : model_(std::move(model)), samples_(samples), calibration_(*model_) {
    for (models::T5Product& product : model_->products()) {
      if (!std::ranges::all_of(product.layers(), [](const auto& layer) { return layer->takes_codes(); })) continue;
      LineProduct names;
      for (const models::T5Linear& layer : product.layers()) {
        names.push_back({.name = layer->path(), .elements = layer->in_features * layer->out_features});
      }
      names_.push_back(std::move(names));
      products_.push_back(std::move(product));
    }
  }

  void run(const std::vector<size_t>& samples, const UseLogits& use) override {
    each_batch(samples, use, [&](const models::T5Input& input) { return model_->forward(input); });
  }
  void observe(const std::vector<size_t>& samples, const UseLogits& use) override {
    each_batch(samples, use, [&](const models::T5Input& input) { return calibration_.observe(input); });
  }
  models::Amaxes amaxes() const override { return calibration_.amaxes(); }
  models::Amaxes worst_case_amaxes() const override { return models::worst_case_amaxes(*model_); }

  // A tied head that has codes has them beside the table.
  double bytes_per_weight() override {
    double bytes = 0, count = 0;
    for (const auto& parameter : model_->parameters()) {
      bytes += static_cast<double>(parameter.nbytes());
      count += static_cast<double>(parameter.numel());
    }
    for (const models::T5Product& product : model_->products()) {
      for (const models::T5Linear& layer : product.layers()) {
        if (!layer->is_quantized()) continue;
        bytes += ops::bytes_of_codes(layer->code_kind(), layer->out_features, layer->in_features);
        const bool is_table = layer.get() == &model_->head() && model_->config.tie_word_embeddings;
        if (!is_table) count += static_cast<double>(layer->in_features * layer->out_features);
      }
    }
    return bytes / count;
  }

  const std::vector<LineProduct>& products() const override { return names_; }
  void hold_codes(WeightDtype codes, const std::vector<bool>& wide) override {
    codes_.resize(products_.size());
    for (size_t i = 0; i < products_.size(); ++i) {
      if (!wide[i] && codes_[i] == nullptr) codes_[i] = codes_of(products_[i], codes);
      products_[i].hold(wide[i] ? nullptr : codes_[i]);
    }
  }

 private:
  template <class Forward>
  void each_batch(const std::vector<size_t>& samples, const UseLogits& use, const Forward& forward) const {
    const int64_t pad = model_->config.pad_token_id;
    for (size_t begin = 0; begin < samples.size(); begin += kBatch) {
      const std::span some = std::span(samples).subspan(begin, std::min(kBatch, samples.size() - begin));
      const T5Batch input = batch_of(some, samples_, &T5Sample::input, pad),
                    decoder = batch_of(some, samples_, &T5Sample::decoder_input, pad);
      const at::Tensor logits = forward({.input_ids = input.ids,
                                         .attention_mask = input.mask,
                                         .decoder_input_ids = decoder.ids,
                                         .decoder_attention_mask = decoder.mask})
                                    .logits;
      for (size_t row = 0; row < some.size(); ++row) {
        const auto tokens = static_cast<int64_t>(samples_[some[row]].decoder_input.size());
        use(some[row], logits.select(0, static_cast<int64_t>(row)).narrow(0, 0, tokens).to(at::kFloat));
      }
    }
  }

  std::shared_ptr<const ops::PackedWeights> codes_of(const models::T5Product& product, WeightDtype codes) {
    std::vector<ops::CodeSource> sources;
    for (const models::T5Linear& layer : product.layers()) sources.push_back({.weight = layer->weight().detach()});
    const bool is_head = product.layers().front().get() == &model_->head();
    return std::make_shared<const ops::PackedWeights>(
        sources, is_head ? models::kT5HeadCodes : models::code_kind(codes).value());
  }

  models::T5ForConditionalGeneration model_;
  const std::vector<T5Sample>& samples_;
  gauge::T5Calibration calibration_;
  std::vector<LineProduct> names_;
  std::vector<models::T5Product> products_;
  std::vector<std::shared_ptr<const ops::PackedWeights>> codes_;  // of each product, once it has had some
};

class T5Line : public LineSubject {
 public:
  explicit T5Line(const LineOptions& options)
      : options_(options),
        config_(models::t5_config(io::HuggingFaceDirectory(options.model))),
        texts_(options.model, config_.vocab_size) {
    if (config_.encoder_only) {
      refuse("--model: expected a model with a decoder, got {}, an encoder alone", options.model.native());
    }
    if (options.context) {
      refuse("--context: expected a decoder, whose text has windows, got {}, a T5, which reads examples",
             options.model.native());
    }
  }

  std::unique_ptr<LineModel> load_exact() override {
    const std::vector<T5Example> examples = texts_.read_examples(options_.data);
    if (examples.size() < 2) {
      fail("{}: expected at least 2 examples, one to search with and one held out, got {}", options_.data.native(),
           examples.size());
    }
    models::T5ForConditionalGeneration model =
        models::load_t5(io::HuggingFaceDirectory(options_.model), WeightDtype::kFp32, options_.warn);
    options_.progress("fp32");
    read_samples(examples, *model);
    return std::make_unique<T5LineModel>(std::move(model), samples_);
  }
  const std::vector<at::Tensor>& targets() const override { return targets_; }
  int64_t vocabulary() const override { return config_.vocab_size; }
  size_t samples_of_a_product() const override { return kBatch; }

  std::unique_ptr<LineModel> load(const Written& from, WeightDtype dtype) const override {
    models::T5ForConditionalGeneration model =
        models::load_t5(io::HuggingFaceDirectory(from.directory), dtype, options_.warn);
    if (!from.is_gauged) model->numerics = models::T5Fixes::seed();
    return std::make_unique<T5LineModel>(std::move(model), samples_);
  }

  std::string calibration(const std::vector<size_t>& samples) const override {
    std::string lines;
    for (const size_t sample : samples) {
      const auto& [input, decoder_input] = samples_[sample];
      lines += json({{"input_ids", input}, {"decoder_input_ids", decoder_input}}).dump() + "\n";
    }
    return lines;
  }

  void copy(const fs::path& directory) const override {
    const models::Freedoms freedoms = models::t5_freedoms(config_);
    models::Exponents none;
    none.pairs.resize(freedoms.pairs.size());
    const io::HuggingFaceDirectory source(options_.model);
    write_gauged({.source = source, .config = config_, .freedoms = freedoms, .exponents = none}, directory);
  }

 private:
  // Until there are as many tokens as asked for, but two samples.
  void read_samples(const std::vector<T5Example>& examples, models::T5ForConditionalGenerationImpl& model) {
    int64_t tokens = 0;
    for (size_t begin = 0; begin < examples.size(); begin += kBatch) {
      const std::span some = std::span(examples).subspan(begin, std::min(kBatch, examples.size() - begin));
      std::vector<std::vector<int64_t>> targets = targets_of(some, begin, model);
      for (size_t i = 0; i < some.size(); ++i) {
        tokens += static_cast<int64_t>(targets[i].size());
        if (tokens > options_.tokens && samples_.size() >= 2) return;
        T5Sample sample{.input = some[i].input, .decoder_input = {config_.decoder_start_token_id}};
        if (!some[i].has_target() && some[i].decoder_input.size() > 1) {
          sample.decoder_input.front() = some[i].decoder_input.front();
        }
        sample.decoder_input.insert(sample.decoder_input.end(), targets[i].begin(), targets[i].end() - 1);
        samples_.push_back(std::move(sample));
        targets_.push_back(at::tensor(targets[i]));
      }
    }
  }

  // Tokens that the decoder is to write for each: the target, else what follows in the decoder's input, else FP32's own text.
  std::vector<std::vector<int64_t>> targets_of(std::span<const T5Example> examples, size_t first,
                                               models::T5ForConditionalGenerationImpl& model) {
    std::vector<std::vector<int64_t>> result(examples.size()), inputs;
    std::vector<size_t> unknown;
    for (size_t i = 0; i < examples.size(); ++i) {
      if (examples[i].has_target()) {
        result[i] = texts_.target_ids(examples[i]);
      } else if (examples[i].decoder_input.size() > 1) {
        result[i].assign(examples[i].decoder_input.begin() + 1, examples[i].decoder_input.end());
      } else {
        unknown.push_back(i);
        inputs.push_back(examples[i].input);
      }
    }
    if (unknown.empty()) return result;
    const T5Batch batch = t5_batch(inputs, 0, inputs.size(), config_.pad_token_id);
    const models::T5Generated written =
        models::generate(model, batch.ids, batch.mask, {.max_new_tokens = kMostWrittenTokens});
    for (size_t row = 0; row < unknown.size(); ++row) {
      if (written.not_finite.contains(static_cast<int64_t>(row))) {
        fail("{}, line {}: expected finite logits in fp32, got Inf or NaN", options_.data.native(),
             first + unknown[row] + 1);
      }
      const at::Tensor ids = written.sequences.select(0, static_cast<int64_t>(row));
      result[unknown[row]] = written_ids(ids, config_);
      const bool has_end = static_cast<int64_t>(result[unknown[row]].size()) + 1 < ids.numel();
      if (has_end) result[unknown[row]].push_back(config_.eos_token_id);
    }
    return result;
  }

  const LineOptions& options_;
  const models::T5Config config_;
  T5Texts texts_;
  std::vector<T5Sample> samples_;
  std::vector<at::Tensor> targets_;
};

}  // namespace

std::unique_ptr<LineSubject> t5_line(const LineOptions& options) { return std::make_unique<T5Line>(options); }

}  // namespace plimsoll::app
