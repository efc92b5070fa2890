#include "plimsoll/nn/report_values.h"

#include <string>

#include "plimsoll/ops/tensor/dtype.h"
#include "plimsoll/ops/tensor/quantize.h"
#include "plimsoll/watch/session.h"

namespace plimsoll::nn {

void report_values(std::string_view path, std::string_view place, const at::Tensor& values) {
  if (watch::current() == nullptr || path.empty()) return;
  report_amax(path, place, values.scalar_type(), ops::amax(values.detach().flatten(0, -2)));
}

void report_between(std::string_view path, std::string_view place, const at::Tensor& values) {
  if (const watch::Session* session = watch::current(); session != nullptr && session->sees_every_value()) {
    report_values(path, place, values);
  }
}

void report_parts(std::string_view path, const at::Tensor& values, const ReportedParts& parts) {
  if (const watch::Session* session = watch::current(); session == nullptr || !session->sees_every_value()) return;
  const auto report = [parts, path = std::string(path)](const at::Tensor& whole, const std::string& prefix) {
    const std::vector<at::Tensor> each = parts.split(whole);
    for (size_t i = 0; i < each.size(); ++i) report_values(path, prefix + std::string(parts.places[i]), each[i]);
  };
  report(values, "");
  if (values.requires_grad()) values.register_hook([report](const at::Tensor& gradient) { report(gradient, "grad_"); });
}

void report_amax(std::string_view path, std::string_view place, at::ScalarType dtype, float amax) {
  if (watch::current() == nullptr || path.empty()) return;
  std::string name(path);
  name.append("/").append(place);
  watch::report(name, {.format = ops::format_of(dtype, "watch"), .amax = amax});
}

}  // namespace plimsoll::nn
