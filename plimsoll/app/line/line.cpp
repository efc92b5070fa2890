#include "plimsoll/app/line/line.h"

#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "plimsoll/app/error.h"
#include "plimsoll/app/finite_json.h"
#include "plimsoll/app/gauge/gauge.h"
#include "plimsoll/app/line/line_text.h"
#include "plimsoll/app/line/plan_measure.h"
#include "plimsoll/app/line/plan_search.h"
#include "plimsoll/app/line/value_rows.h"
#include "plimsoll/app/new_directory.h"
#include "plimsoll/app/text/text_model.h"
#include "plimsoll/io/atomic_file.h"
#include "plimsoll/io/json.h"
#include "plimsoll/io/sha256.h"
#include "plimsoll/models/decoder/config_names.h"
#include "plimsoll/models/load.h"
#include "plimsoll/ops/linear/no_kept_weights.h"
#include "plimsoll/ops/memory/caching_allocator.h"
#include "plimsoll/watch/audit.h"

namespace plimsoll::app {
namespace {

namespace fs = std::filesystem;
using models::WeightDtype;
using nlohmann::json;

constexpr const char* kCalibrationFile = "plimsoll_line_calibration.jsonl";

class Line {
 public:
  explicit Line(const LineOptions& options) : options_(options), directory_(options.out), exact_(read_exact()) {}

  json draw() {
    result_ = {
        {"model", options_.model.native()},
        {"data", options_.data.native()},
        {"data_sha256", io::sha256_of_file(options_.data)},
        {"max_kl", options_.max_kl},
        {"codes", codes_},
        {"tokens", {{"search", text_->tokens(TextPart::kSearch)}, {"held_out", text_->tokens(TextPart::kHeldOut)}}},
        {"gauge", nullptr},
        {"plan", nullptr},
        {"products", json::array()},
        {"values", values()}};
    exact_ = {};  // one model at a time
    judge("bf16", options_.model, WeightDtype::kBf16);
    if (!judge("fp16", options_.model, WeightDtype::kFp16)) gauge();
    if (!has_weights_) copy_weights();
    bool needs_plan = false;
    for (const auto& [name, dtype] : kLineCodes) {
      const bool holds = judge(std::string(name), directory_.partial(), dtype);
      if (dtype == options_.codes) needs_plan = !holds;
    }
    if (needs_plan) plan();
    io::write_file(directory_.partial() / kLineFile, result_.dump(2) + "\n");
    directory_.commit();
    return std::move(result_);
  }

 private:
  json values() const {
    const watch::AuditedRun run("bounds");
    return value_rows(text_->amaxes(), exact_.model->worst_case_amaxes());
  }

  TextModel load(const fs::path& path, WeightDtype dtype) const {
    release_cached_memory();  // of the model before
    return load_text_model({.path = path, .dtype = dtype, .warn = options_.warn});
  }

  // The model in FP32, whose logits all formats are compared with.
  TextModel read_exact() {
    if (!models::is_decoder_directory(options_.model)) {
      refuse("--model: expected a Hugging Face directory of a decoder, got {}", options_.model.native());
    }
    options_.progress("fp32");
    const watch::AuditedRun run("fp32");
    TextModel exact = load(options_.model, WeightDtype::kFp32);
    const TokenWindowOptions windows{.data = options_.data, .context = options_.context, .tokens = options_.tokens};
    text_ = std::make_unique<LineText>(exact, windows, directory_.partial());
    return exact;
  }

  // Whether the format holds, on the text to search with, too: nothing is chosen by the text that is held out.
  bool judge(const std::string& name, const fs::path& path, WeightDtype dtype) {
    options_.progress(name);
    const watch::AuditedRun run(name);
    const TextModel model = load(path, dtype);
    const PlanDivergence in_search = divergence_of(text_->compare(model, TextPart::kSearch));
    json entry = text_->compare(model, TextPart::kHeldOut).tokens.result();
    entry["bytes_per_weight"] = bytes_per_weight(*model.model);
    entry["search_kl"] = finite_or_null(in_search.mean);
    entry["holds"] = entry.at("finite").get<bool>() && !entry.at("logits_kl").is_null() &&
                     entry.at("logits_kl").get<double>() <= options_.max_kl;
    result_["formats"][name] = std::move(entry);
    return in_search.bound() <= options_.max_kl;
  }

  void gauge() {
    options_.progress("gauge");
    const fs::path inputs = directory_.partial() / kCalibrationFile, gauged = directory_.partial() / "gauged";
    std::string lines;
    for (const TokenWindow& window : text_->windows(TextPart::kSearch)) {
      const auto* ids = window.inputs.const_data_ptr<int64_t>();
      lines += json({{"input_ids", std::vector<int64_t>(ids, ids + window.inputs.numel())}}).dump() + "\n";
    }
    io::write_file(inputs, lines);
    try {
      const watch::AuditedRun run("gauge");
      gauge_checkpoint(
          {.model = options_.model, .out = gauged, .calibrate = inputs, .measurements = options_.measurements});
    } catch (const Error& error) {
      result_["gauge"] = {{"error", error.what()}};
      fs::remove(inputs);
      return;
    }
    for (const fs::directory_entry& file : fs::directory_iterator(gauged)) {
      fs::rename(file.path(), directory_.partial() / file.path().filename());
    }
    fs::remove(gauged);
    has_weights_ = true;
    result_["gauge"] = {{"certificate", kGaugeCertificate}};
    judge("fp16 gauged", directory_.partial(), WeightDtype::kFp16);
  }

  void copy_weights() {
    const models::LoadedModel source = models::load(options_.model, {.warn = options_.warn});
    models::save(*source.model, directory_.partial(), {.source = options_.model});
  }

  void plan() {
    options_.progress("plan");
    std::vector<PlanProduct> products;
    Plan plan;
    {
      const watch::AuditedRun run("plan");
      const TextModel model = load(directory_.partial(), WeightDtype::kBf16);
      PlanMeasure measure(model, *text_, models::code_kind(options_.codes).value());
      products = measure.products();
      plan = search_plan({.products = products,
                          .most = options_.max_kl,
                          .measure = [&](const std::vector<bool>& wide) { return measure.measure(wide); },
                          .most_measurements = options_.measurements});
    }
    json names = json::array();
    double narrow = 0, all = 0;
    for (size_t i = 0; i < products.size(); ++i) {
      const PlanProduct& product = products[i];
      result_["products"].push_back({{"name", product.name},
                                     {"weights", product.weights},
                                     {"kl_alone", finite_or_null(product.divergence)},
                                     {"high_precision", static_cast<bool>(plan.wide[i])}});
      all += static_cast<double>(product.weights);
      if (plan.wide[i]) {
        names.push_back(product.name);
      } else {
        narrow += static_cast<double>(product.weights);
      }
    }
    write_plan(names);
    result_["plan"] = {{"high_precision", std::move(names)},
                       {"narrow_share", narrow / all},
                       {"measurements", plan.measurements},
                       {"search_kl", finite_or_null(plan.divergence.mean)},
                       {"search_standard_error", finite_or_null(plan.divergence.standard_error)},
                       {"is_within", plan.is_within}};
    judge(codes_ + " planned", directory_.partial(), options_.codes);
  }

  void write_plan(const json& names) const {
    const fs::path path = directory_.partial() / "config.json";
    json config = io::read_json(path);
    config[models::kPlanMember] = {{models::kHighPrecisionMember, names}};
    io::write_file(path, config.dump(2) + "\n");
  }

  const LineOptions& options_;
  const std::string codes_ = std::string(recipe::name_of(std::span(kLineCodes), options_.codes));
  NewDirectory directory_;
  std::unique_ptr<LineText> text_;
  TextModel exact_;
  bool has_weights_ = false;  // the directory to make has them
  json result_;
};

}  // namespace

json draw_line(const LineOptions& options) {
  const at::NoGradGuard no_grad;
  const ops::NoKeptWeights no_kept_weights;
  return Line(options).draw();
}

}  // namespace plimsoll::app
