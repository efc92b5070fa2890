// plimsoll.autoscale: making scaled tensors, looking into them, and what a session has counted.
#include <torch/custom_class.h>
#include <torch/library.h>

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <memory>
#include <string>
#include <vector>

#include "plimsoll/autoscale/parts.h"
#include "plimsoll/autoscale/rule.h"
#include "plimsoll/autoscale/scaled_tensor_impl.h"
#include "plimsoll/autoscale/session.h"
#include "plimsoll/autoscale/several_scales.h"
#include "plimsoll/autoscale/storage.h"
#include "plimsoll/bind/named_option.h"

namespace plimsoll::bind {
namespace {

using autoscale::scaled_impl;

int32_t checked_exponent(int64_t exponent) {
  TORCH_CHECK_VALUE(exponent >= -autoscale::kLargestExponent && exponent <= autoscale::kLargestExponent,
                    "autoscale: expected an exponent of at most ", autoscale::kLargestExponent, ", got ", exponent);
  return static_cast<int32_t>(exponent);
}

// A session as Python holds it.
struct SessionHandle : torch::CustomClassHolder {
  explicit SessionHandle(std::shared_ptr<autoscale::Session> other) : session(std::move(other)) {}

  // op: calls in the format of the data, in FP32, of codes, without a rule.
  c10::Dict<std::string, std::vector<int64_t>> counts() const {
    c10::Dict<std::string, std::vector<int64_t>> rows;
    for (const auto& [op, count] : session->counts())
      rows.insert(op, std::vector<int64_t>{count.storage, count.wide, count.codes, count.fallback});
    return rows;
  }

  // The operator of each call, the exponents of its operands, and those of its results.
  std::vector<std::tuple<std::string, std::vector<int64_t>, std::vector<int64_t>>> stop_inspection() const {
    const auto exponents = [](const std::vector<autoscale::Scale>& scales) {
      std::vector<int64_t> list;
      for (const autoscale::Scale& scale : scales) list.push_back(scale.exponent);
      return list;
    };
    std::vector<std::tuple<std::string, std::vector<int64_t>, std::vector<int64_t>>> rows;
    for (const autoscale::InspectedCall& call : session->stop_inspection())
      rows.emplace_back(call.op, exponents(call.operands), exponents(call.results));
    return rows;
  }

  // Elements, overflowed, small.
  std::vector<int64_t> range() const {
    const autoscale::RangeCounts range = session->range();
    return {range.elements, range.overflowed, range.small};
  }

  const std::shared_ptr<autoscale::Session> session;
};

using SessionPointer = c10::intrusive_ptr<SessionHandle>;

// product_values, product_gradients: names of formats in which products read their operands; none: data as they are.
SessionPointer new_session(at::ScalarType dtype, std::string_view rounding, std::string_view method, int64_t exponent,
                           std::optional<std::string_view> product_values,
                           std::optional<std::string_view> product_gradients, bool counts_range) {
  const auto product_format = [](std::string_view option, std::optional<std::string_view> name) {
    return name ? named_option(autoscale::kProductFormats, option, *name) : autoscale::ProductFormat::kData;
  };
  const autoscale::Settings settings = {
      .storage = dtype,
      .rounding = named_option(autoscale::kRoundings, "rounding", rounding),
      .policy = {.method = named_option(autoscale::kMethods, "method", method), .exponent = checked_exponent(exponent)},
      .product_values = product_format("product_values", product_values),
      .product_gradients = product_format("product_gradients", product_gradients),
      .counts_range = counts_range};
  return c10::make_intrusive<SessionHandle>(std::make_shared<autoscale::Session>(settings));
}

at::Tensor as_scaled(const at::Tensor& x, const SessionPointer& session) {
  return autoscale::as_scaled(x, session->session);
}

void check_plain(const at::Tensor& x, const char* name) {
  TORCH_CHECK(x.device().is_cpu() && x.layout() == at::kStrided && !x.is_complex(), "autoscale: expected ", name,
              " as a strided tensor of real numbers on the CPU, got ", x.toString());
}

at::Tensor as_scaled_with(const at::Tensor& x, const at::Tensor& scale, const SessionPointer& session) {
  check_plain(x, "values");
  check_plain(scale, "a scale");
  return autoscale::as_scaled(x, scale, session->session);
}

at::Tensor scaled_array(const at::Tensor& data, const at::Tensor& scale, const SessionPointer& session) {
  check_plain(data, "data");
  check_plain(scale, "a scale");
  return autoscale::scaled_array(data, scale, session->session);
}

at::Tensor data_of_scaled(const at::Tensor& x) { return scaled_impl(x).data(); }
at::Tensor scale_of_scaled(const at::Tensor& x) { return autoscale::scale_of(x); }
double remainder_of_scaled(const at::Tensor& x) { return scaled_impl(x).scale().remainder; }

at::Tensor value_of_scaled(const at::Tensor& x) {
  const autoscale::BelowAutoscale below;
  return autoscale::value_of(x);
}

SessionPointer session_of(const at::Tensor& x) {
  return c10::make_intrusive<SessionHandle>(scaled_impl(x).shared().session);
}

// data * scale, any positive number, at the power of two in it if the session's dtype holds that; or several.
at::Tensor result_of_rule(const at::Tensor& data, const at::Tensor& scales, const SessionPointer& session) {
  check_plain(data, "data");
  check_plain(scales, "a scale");
  const autoscale::BelowAutoscale below;
  if (scales.numel() != 1) return autoscale::scaled_array(data, scales, session->session);
  const double scale = scales.item<double>();
  TORCH_CHECK(std::isfinite(scale) && scale >= 0, "rule: expected a scale of at least 0, got ", scale);
  int exponent = 0;
  const double mantissa = 2 * std::frexp(scale, &exponent);
  const at::Tensor exact = data.detach().to(at::kFloat).mul(mantissa);
  const at::ScalarType dtype = autoscale::storage_dtype(*session->session, data.dim(), false);
  autoscale::Encoded encoded =
      autoscale::encode({.data = exact, .exponent = exponent - 1}, *session->session, {.dtype = at::kFloat});
  const autoscale::Scale asked = autoscale::with_exponent(encoded.scale, exponent - 1);
  if (!encoded.scale.is_zero() && autoscale::fits(asked.bound, dtype)) encoded = {.data = exact, .scale = asked};
  return autoscale::make_scaled(encoded.data.to(dtype), {.scale = encoded.scale, .session = session->session});
}

// Remainder of rounding a parameter, as its dtype; no elements where nothing is kept.
at::Tensor kept_remainder(const at::Tensor& x) {
  const at::Tensor remainder = autoscale::remainder_of(scaled_impl(x));
  return remainder.defined() ? remainder : scaled_impl(x).data().new_empty({0});
}

// The same for all tensors of a session, and no others while it lives.
int64_t session_id(const at::Tensor& x) { return reinterpret_cast<int64_t>(scaled_impl(x).shared().session.get()); }

at::Tensor set_scale(const at::Tensor& x, const at::Tensor& scale) {
  check_plain(scale, "a scale");
  return autoscale::set_scale(x, scale);
}

at::Tensor rebalance(const at::Tensor& x, const at::Tensor& factor) {
  check_plain(factor, "a factor");
  return autoscale::rebalance(x, factor);
}

void set_kept_remainder(const at::Tensor& x, const at::Tensor& remainder) {
  check_plain(remainder, "a remainder");
  autoscale::set_remainder(x, remainder);
}

void mark_parameter(const at::Tensor& x) { scaled_impl(x).shared().parameter = true; }

std::tuple<std::vector<std::string>, std::vector<std::string>, std::vector<std::string>> rule_table() {
  std::tuple<std::vector<std::string>, std::vector<std::string>, std::vector<std::string>> rows;
  for (const autoscale::Rule& rule : autoscale::rules()) {
    if (rule.kind == autoscale::RuleClass::kView) continue;  // most views have no row
    std::get<0>(rows).emplace_back(rule.op);
    std::get<1>(rows).emplace_back(class_of(rule.kind).name);
    std::get<2>(rows).emplace_back(class_of(rule.kind).bound);
  }
  return rows;
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(plimsoll, library) {
  library.class_<SessionHandle>("AutoscaleSession")
      .def("counts", &SessionHandle::counts)
      .def("range", &SessionHandle::range)
      .def("count", [](const SessionPointer& self,
                       const std::string& op) { self->session->count(op, &autoscale::CallCounts::storage); })
      .def("start_inspection", [](const SessionPointer& self) { self->session->start_inspection(); })
      .def("stop_inspection", &SessionHandle::stop_inspection)
      .def("set_gradient_exponent",
           [](const SessionPointer& self, int64_t exponent) {
             self->session->set_gradient_exponent(checked_exponent(exponent));
           })
      .def("clear_counts", [](const SessionPointer& self) { self->session->clear_counts(); });
  library.def(
      "autoscale_session(*, ScalarType dtype, str rounding, str method, int exponent, str? product_values, "
      "str? product_gradients, bool counts_range) -> __torch__.torch.classes.plimsoll.AutoscaleSession",
      &new_session);
  library.def("autoscale_as_scaled(Tensor x, __torch__.torch.classes.plimsoll.AutoscaleSession session) -> Tensor",
              &as_scaled);
  library.def(
      "autoscale_as_scaled_with(Tensor x, Tensor scale, __torch__.torch.classes.plimsoll.AutoscaleSession session) -> "
      "Tensor",
      &as_scaled_with);
  library.def(
      "autoscale_scaled_array(Tensor data, Tensor scale, __torch__.torch.classes.plimsoll.AutoscaleSession session) -> "
      "Tensor",
      &scaled_array);
  library.def("autoscale_data(Tensor x) -> Tensor", &data_of_scaled);
  library.def("autoscale_scale(Tensor x) -> Tensor", &scale_of_scaled);
  library.def("autoscale_with_dtype(Tensor x, ScalarType dtype) -> Tensor", &autoscale::with_logical);
  library.def("autoscale_remainder(Tensor x) -> float", &remainder_of_scaled);
  library.def("autoscale_value(Tensor x) -> Tensor", &value_of_scaled);
  library.def("autoscale_set_scale(Tensor x, Tensor scale) -> Tensor", &set_scale);
  library.def("autoscale_rebalance(Tensor x, Tensor factor) -> Tensor", &rebalance);
  library.def("autoscale_session_of(Tensor x) -> __torch__.torch.classes.plimsoll.AutoscaleSession", &session_of);
  library.def(
      "autoscale_result(Tensor data, Tensor scale, __torch__.torch.classes.plimsoll.AutoscaleSession session) -> "
      "Tensor",
      &result_of_rule);
  library.def("autoscale_kept_remainder(Tensor x) -> Tensor", &kept_remainder);
  library.def("autoscale_set_kept_remainder(Tensor x, Tensor remainder) -> ()", &set_kept_remainder);
  library.def("autoscale_session_id(Tensor x) -> int", &session_id);
  library.def("autoscale_mark_parameter(Tensor x) -> ()", &mark_parameter);
  library.def("autoscale_rules() -> (str[] ops, str[] classes, str[] bounds)", &rule_table);
}

}  // namespace plimsoll::bind
