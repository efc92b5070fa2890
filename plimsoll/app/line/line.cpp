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
#include "plimsoll/app/line/line_model.h"
#include "plimsoll/app/line/line_subjects.h"
#include "plimsoll/app/line/line_text.h"
#include "plimsoll/app/line/plan_measure.h"
#include "plimsoll/app/line/plan_search.h"
#include "plimsoll/app/line/value_rows.h"
#include "plimsoll/app/new_directory.h"
#include "plimsoll/app/process/interrupt.h"
#include "plimsoll/app/train/trained_model.h"
#include "plimsoll/io/atomic_file.h"
#include "plimsoll/io/json.h"
#include "plimsoll/io/sha256.h"
#include "plimsoll/models/load.h"
#include "plimsoll/models/model_plan.h"
#include "plimsoll/ops/linear/no_kept_weights.h"
#include "plimsoll/ops/memory/caching_allocator.h"
#include "plimsoll/watch/audit.h"

namespace plimsoll::app {
namespace {

namespace fs = std::filesystem;
using models::WeightDtype;
using nlohmann::json;

constexpr const char* kCalibrationFile = "plimsoll_line_calibration.jsonl";

std::unique_ptr<LineSubject> subject_of(const LineOptions& options) {
  expect_hugging_face_directory("--model", options.model);
  return models::is_decoder_directory(options.model) ? decoder_line(options) : t5_line(options);
}

class Line {
 public:
  explicit Line(const LineOptions& options)
      : options_(options), subject_(subject_of(options)), directory_(options.out), exact_(read_exact()) {}

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
    judge("bf16", {options_.model}, WeightDtype::kBf16);
    if (!judge("fp16", {options_.model}, WeightDtype::kFp16)) gauge();
    if (!is_gauged_) subject_->copy(directory_.partial());
    bool needs_plan = false;
    for (const auto& [name, dtype] : kLineCodes) {
      const bool holds = judge(std::string(name), written(), dtype);
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
    return value_rows(exact_->amaxes(), exact_->worst_case_amaxes());
  }

  LineSubject::Written written() const { return {.directory = directory_.partial(), .is_gauged = is_gauged_}; }

  std::unique_ptr<LineModel> load(const LineSubject::Written& from, WeightDtype dtype) const {
    release_cached_memory();  // of the model before
    return subject_->load(from, dtype);
  }

  // The model in FP32, whose logits all formats are compared with.
  std::unique_ptr<LineModel> read_exact() {
    const watch::AuditedRun run("fp32");
    std::unique_ptr<LineModel> exact = subject_->load_exact();
    text_ = std::make_unique<LineText>(*exact, *subject_, directory_.partial(), interrupt_);
    return exact;
  }

  // Whether the format holds, on the text to search with, too: nothing is chosen by the text that is held out.
  bool judge(const std::string& name, const LineSubject::Written& from, WeightDtype dtype) {
    options_.progress(name);
    const watch::AuditedRun run(name);
    const std::unique_ptr<LineModel> model = load(from, dtype);
    const PlanDivergence in_search = divergence_of(text_->compare(*model, TextPart::kSearch));
    json entry = text_->compare(*model, TextPart::kHeldOut).tokens.result();
    entry["bytes_per_weight"] = model->bytes_per_weight();
    entry["search_kl"] = finite_or_null(in_search.mean);
    entry["holds"] = entry.at("finite").get<bool>() && !entry.at("logits_kl").is_null() &&
                     entry.at("logits_kl").get<double>() <= options_.max_kl;
    result_["formats"][name] = std::move(entry);
    return in_search.bound() <= options_.max_kl;
  }

  void gauge() {
    options_.progress("gauge");
    const fs::path inputs = directory_.partial() / kCalibrationFile, gauged = directory_.partial() / "gauged";
    io::write_file(inputs, subject_->calibration(text_->samples(TextPart::kSearch)));
    try {
      const watch::AuditedRun run("gauge");
      gauge_checkpoint({.model = options_.model,
                        .out = gauged,
                        .calibrate = inputs,
                        .measurements = options_.measurements,
                        .check = [&] { interrupt_.stop_if_requested("line"); }});
    } catch (const Interrupted&) {
      throw;
    } catch (const Error& error) {
      result_["gauge"] = {{"error", error.what()}};
      fs::remove(inputs);
      return;
    }
    for (const fs::directory_entry& file : fs::directory_iterator(gauged)) {
      fs::rename(file.path(), directory_.partial() / file.path().filename());
    }
    fs::remove(gauged);
    is_gauged_ = true;
    result_["gauge"] = {{"certificate", kGaugeCertificate}};
    judge("fp16 gauged", written(), WeightDtype::kFp16);
  }

  void plan() {
    options_.progress("plan");
    std::vector<LineProduct> weights;
    std::vector<PlanProduct> products;
    Plan plan;
    {
      const watch::AuditedRun run("plan");
      const std::unique_ptr<LineModel> model = load(written(), WeightDtype::kBf16);
      PlanMeasure measure(*model, *text_, options_.codes, subject_->samples_of_a_product());
      weights = model->products();
      products = measure.products();
      plan = search_plan({.products = products,
                          .most = options_.max_kl,
                          .measure = [&](const std::vector<bool>& wide) { return measure.measure(wide); },
                          .most_measurements = options_.measurements});
    }
    std::vector<std::string> names;
    double narrow = 0, all = 0;
    for (size_t i = 0; i < products.size(); ++i) {
      const bool is_wide = plan.wide[i];
      for (const LineWeight& weight : weights[i]) {
        result_["products"].push_back({{"name", weight.name},
                                       {"weights", weight.elements},
                                       {"kl_alone", finite_or_null(products[i].divergence)},
                                       {"high_precision", is_wide}});
        if (is_wide) names.push_back(weight.name);
      }
      const auto elements = static_cast<double>(products[i].weights);
      all += elements;
      if (!is_wide) narrow += elements;
    }
    names = write_plan(std::move(names));
    result_["plan"] = {{"high_precision", std::move(names)},
                       {"narrow_share", narrow / all},
                       {"measurements", plan.measurements},
                       {"search_kl", finite_or_null(plan.divergence.mean)},
                       {"search_standard_error", finite_or_null(plan.divergence.standard_error)},
                       {"is_within", plan.is_within}};
    judge(codes_ + " planned", written(), options_.codes);
  }

  // All names of the plan: products that the source has in high precision were so in every measurement.
  std::vector<std::string> write_plan(std::vector<std::string> names) const {
    const fs::path path = directory_.partial() / "config.json";
    json config = io::read_json(path);
    const std::vector<std::string> before = models::read_plan(config, path.native());
    names.insert(names.begin(), before.begin(), before.end());
    config[models::kPlanMember] = {{models::kHighPrecisionMember, names}};
    io::write_file(path, config.dump(2) + "\n");
    return names;
  }

  const LineOptions& options_;
  const std::string codes_ = std::string(recipe::name_of(std::span(kLineCodes), options_.codes));
  const std::unique_ptr<LineSubject> subject_;
  const InterruptScope interrupt_;
  NewDirectory directory_;
  std::unique_ptr<LineText> text_;
  std::unique_ptr<LineModel> exact_;
  bool is_gauged_ = false;  // what stands in the directory to make
  json result_;
};

}  // namespace

json draw_line(const LineOptions& options) {
  const at::NoGradGuard no_grad;
  const ops::NoKeptWeights no_kept_weights;
  return Line(options).draw();
}

}  // namespace plimsoll::app
