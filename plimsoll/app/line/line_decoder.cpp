#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "plimsoll/app/error.h"
#include "plimsoll/app/line/line_subjects.h"
#include "plimsoll/app/text/text_model.h"
#include "plimsoll/app/text/token_windows.h"
#include "plimsoll/gauge/calibration.h"
#include "plimsoll/models/load.h"
#include "plimsoll/nn/held_codes.h"

namespace plimsoll::app {
namespace {

namespace fs = std::filesystem;
using models::WeightDtype;

class DecoderLineModel : public LineModel {
 public:
  DecoderLineModel(TextModel model, const std::vector<TokenWindow>& windows)
      : model_(std::move(model)),
        windows_(windows),
        calibration_(*model_.model),
        weights_(nn::weights_with_codes(model_.model->module())) {
    for (const nn::ProductWeight& product : weights_) {
      products_.push_back({{.name = product.state->name, .elements = product.weight.numel()}});
    }
  }

  void run(const std::vector<size_t>& samples, const UseLogits& use) override {
    for (const size_t sample : samples) use(sample, logits_of(model_, windows_[sample]));
  }
  double bytes_per_weight() override { return app::bytes_per_weight(*model_.model); }

  void observe(const std::vector<size_t>& samples, const UseLogits& use) override {
    for (const size_t sample : samples) {
      use(sample, calibration_.observe(windows_[sample].inputs.unsqueeze(0)).squeeze(0));
    }
  }
  models::Amaxes amaxes() const override { return calibration_.amaxes(); }
  models::Amaxes worst_case_amaxes() const override { return model_.model->worst_case_amaxes(); }

  const std::vector<LineProduct>& products() const override { return products_; }
  void hold_codes(WeightDtype codes, const std::vector<bool>& wide) override {
    codes_.resize(weights_.size());
    for (size_t i = 0; i < weights_.size(); ++i) {
      if (!wide[i] && codes_[i] == nullptr) {
        codes_[i] = std::make_shared<ops::HeldWeight>(nn::CodeSources{{.weight = weights_[i].weight.detach()}},
                                                      ops::HeldOptions{.kind = models::code_kind(codes).value()});
      }
      weights_[i].state->weight_source.hold(wide[i] ? nullptr : codes_[i]);
    }
  }

 private:
  TextModel model_;
  const std::vector<TokenWindow>& windows_;
  gauge::Calibration calibration_;
  std::vector<nn::ProductWeight> weights_;
  std::vector<LineProduct> products_;
  std::vector<std::shared_ptr<ops::HeldWeight>> codes_;  // of each product, once it has had some
};

class DecoderLine : public LineSubject {
 public:
  explicit DecoderLine(const LineOptions& options) : options_(options) {}

  std::unique_ptr<LineModel> load_exact() override {
    TextModel model = load_text_model({.path = options_.model, .dtype = WeightDtype::kFp32, .warn = options_.warn});
    windows_ =
        read_token_windows(model, {.data = options_.data, .context = options_.context, .tokens = options_.tokens});
    if (windows_.size() < 2) {
      const int64_t tokens = windows_.front().inputs.numel();
      fail(
          "{}: expected at least 2 windows of {} tokens, one to search with and one held out, got 1 of {}; --context "
          "says how long they are, --tokens how much of the text they have",
          options_.data.native(), options_.context.value_or(tokens), tokens);
    }
    options_.progress("fp32");
    for (const TokenWindow& window : windows_) targets_.push_back(window.targets);
    vocabulary_ = vocabulary_of(*model.model);
    return std::make_unique<DecoderLineModel>(std::move(model), windows_);
  }
  const std::vector<at::Tensor>& targets() const override { return targets_; }
  int64_t vocabulary() const override { return vocabulary_; }
  size_t samples_of_a_product() const override { return 1; }

  std::unique_ptr<LineModel> load(const Written& from, WeightDtype dtype) const override {
    return std::make_unique<DecoderLineModel>(
        load_text_model({.path = from.directory, .dtype = dtype, .warn = options_.warn}), windows_);
  }

  std::string calibration(const std::vector<size_t>& samples) const override {
    std::string lines;
    for (const size_t sample : samples) {
      const at::Tensor& inputs = windows_[sample].inputs;
      const auto* ids = inputs.const_data_ptr<int64_t>();
      lines += nlohmann::json({{"input_ids", std::vector<int64_t>(ids, ids + inputs.numel())}}).dump() + "\n";
    }
    return lines;
  }

  void copy(const fs::path& directory) const override {
    const models::LoadedModel source = models::load(options_.model, {.warn = options_.warn});
    models::save(*source.model, directory, {.source = options_.model});
  }

 private:
  const LineOptions& options_;
  std::vector<TokenWindow> windows_;
  std::vector<at::Tensor> targets_;
  int64_t vocabulary_ = 0;
};

}  // namespace

std::unique_ptr<LineSubject> decoder_line(const LineOptions& options) { return std::make_unique<DecoderLine>(options); }

}  // namespace plimsoll::app
