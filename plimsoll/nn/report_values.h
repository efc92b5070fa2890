// Amaxes of values on their way from one op to the next, for whoever watches (watch::Session).
#pragma once

#include <ATen/core/TensorBody.h>

#include <functional>
#include <string_view>
#include <vector>

namespace plimsoll::nn {

// Under "path/place": the amax and the format of `values`, fp32, bf16 or fp16. Reads them only if somebody watches.
void report_values(std::string_view path, std::string_view place, const at::Tensor& values);

// The same for a session that sees_every_value.
void report_between(std::string_view path, std::string_view place, const at::Tensor& values);

// The same for parts of values, each under its own place; in the backward pass that of each part's gradient, under
// "path/grad_place". split: the parts of values, and of their gradient.
struct ReportedParts {
  std::vector<std::string_view> places;  // literals
  std::function<std::vector<at::Tensor>(const at::Tensor&)> split;
};
void report_parts(std::string_view path, const at::Tensor& values, const ReportedParts& parts);

// The same for values whose amax is known.
void report_amax(std::string_view path, std::string_view place, at::ScalarType dtype, float amax);

}  // namespace plimsoll::nn
