// Amaxes of values on their way from one op to the next, for whoever watches (watch::Session).
#pragma once

#include <ATen/core/TensorBody.h>

#include <string_view>

namespace plimsoll::nn {

// Under "path/place": the amax and the format of `values`, fp32, bf16 or fp16. Reads them only if somebody watches.
void report_values(std::string_view path, std::string_view place, const at::Tensor& values);

// The same for a session that sees_every_value.
void report_between(std::string_view path, std::string_view place, const at::Tensor& values);

// The same for values whose amax is known.
void report_amax(std::string_view path, std::string_view place, at::ScalarType dtype, float amax);

}  // namespace plimsoll::nn
