#include "plimsoll/app/gauge/gauged_loss_scale.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "plimsoll/app/error.h"
#include "plimsoll/app/gauge/gauge.h"
#include "plimsoll/io/json.h"

namespace plimsoll::app {

std::optional<LossScale> gauged_loss_scale(const std::filesystem::path& directory, double targets_a_step) {
  const std::filesystem::path file = directory / kGaugeCertificate;
  if (!std::filesystem::exists(file)) return std::nullopt;
  const nlohmann::json certificate = io::read_json(file);
  if (!certificate.is_object() || !certificate.contains("train")) return std::nullopt;
  double scale = 0, most = 0, targets = 0;
  try {
    if (certificate.at("train").at("loss_scale").is_null()) return std::nullopt;
    scale = certificate.at("train").at("loss_scale").get<double>();
    most = certificate.at("train").at("most_loss_scale").get<double>();
    targets = certificate.at("train").at("targets_a_step").get<double>();
  } catch (const nlohmann::json::exception&) {
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
  return parse_loss_scale(left == 1 ? "none" : fmt::format("{}", left));
}

}  // namespace plimsoll::app
