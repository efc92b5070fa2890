#include "plimsoll/app/gauge/gauged_loss_scale.h"

#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "plimsoll/app/error.h"
#include "plimsoll/app/gauge/gauge.h"
#include "plimsoll/app/gauge/gauge_channels.h"
#include "plimsoll/io/json.h"

namespace plimsoll::app {

namespace {

using nlohmann::json;

constexpr double kMostApart = 0x1p-8;  // twice what rounding to BF16 changes, of an amax

json certificate_in(const std::filesystem::path& file) {
  json certificate = io::read_json(file);
  const auto is_weight = [](const json& each) {
    return each.is_object() && each.contains("name") && each["name"].is_string() && each.contains("amax") &&
           (each["amax"].is_number() || each["amax"].is_null());
  };
  if (!certificate.is_object() || !certificate.contains("weights") || !certificate["weights"].is_array() ||
      !std::ranges::all_of(certificate["weights"], is_weight)) {
    fail(
        "{}: expected a certificate of plimsoll gauge, with a name and an amax of each of its weights, got another file",
        file.native());
  }
  return certificate;
}

}  // namespace

void expect_certified_weights(const std::filesystem::path& directory, const models::LanguageModel& model) {
  const at::NoGradGuard no_grad;
  const std::filesystem::path file = directory / kGaugeCertificate;
  const json certificate = certificate_in(file);
  const gauge::WeightRanges ranges = weight_ranges_of(model, model.freedoms());
  for (const json& weight : certificate["weights"]) {
    const auto name = weight["name"].get<std::string>();
    const auto found = ranges.find(name);
    if (found == ranges.end()) fail("{}: expected the weights that it is of, got none named {}", file.native(), name);
    const double expected = weight["amax"].is_null() ? INFINITY : weight["amax"].get<double>(),
                 got = found->second.amax;
    const bool is_same = std::isfinite(expected) ? std::abs(got - expected) <= kMostApart * expected
                                                 : !std::isfinite(got);  // JSON has neither Inf nor NaN
    if (is_same) continue;
    fail(
        "{}: expected the weights that it is of, got others: the largest of {} is {:.6g} in place of {:.6g}; gauge "
        "the model anew, or type --loss-scale",
        file.native(), name, got, expected);
  }
}

std::optional<LossScale> gauged_loss_scale(const std::filesystem::path& directory, double targets_a_step) {
  const std::filesystem::path file = directory / kGaugeCertificate;
  if (!std::filesystem::exists(file)) return std::nullopt;
  const json certificate = certificate_in(file);
  if (!certificate.contains("train")) return std::nullopt;
  double scale = 0, most = 0, targets = 0;
  try {
    if (certificate.at("train").at("loss_scale").is_null()) return LossScale();
    scale = certificate.at("train").at("loss_scale").get<double>();
    most = certificate.at("train").at("most_loss_scale").get<double>();
    targets = certificate.at("train").at("targets_a_step").get<double>();
  } catch (const json::exception&) {
    fail("{}: expected train.loss_scale, most_loss_scale and targets_a_step, three numbers", file.native());
  }
  if (!(scale >= 1 && most >= scale && targets >= 1) || !std::isfinite(most) || !std::isfinite(targets)) {
    fail(
        "{}: expected train.loss_scale of 1 or more, most_loss_scale no smaller, targets_a_step of 1 or more, "
        "got {}, {}, {}",
        file.native(), scale, most, targets);
  }
  // The power of two that small gradients need, unless large ones do not bear it.
  const double share = targets_a_step / targets;
  const double needed = std::max(0.0, std::ceil(std::log2(scale * share)));
  const double left = std::exp2(std::min(needed, std::floor(std::log2(most * share))));
  LossScale found = parse_loss_scale(left == 1 ? "none" : fmt::format("{}", left));
  found.is_gauged = true;
  return found;
}

}  // namespace plimsoll::app
