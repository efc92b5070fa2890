#include "plimsoll/models/t5/weight.h"

#include <ATen/ops/empty.h>

namespace plimsoll::models {

T5WeightImpl::T5WeightImpl(std::vector<int64_t> shape) : sizes(std::move(shape)) { T5WeightImpl::reset(); }

void T5WeightImpl::reset() { weight = register_parameter("weight", at::empty(sizes)); }

}  // namespace plimsoll::models
