// A layer's product, and what the session in force on this thread wants to know about it.
#pragma once

#include <string_view>

#include "plimsoll/ops/tensor/audited_product.h"
#include "plimsoll/ops/tensor/gemm.h"

namespace plimsoll::ops {

struct WatchedProduct {
  const Product& product;
  std::string_view path;    // of the layer; empty: nothing is reported
  std::string_view result;  // "output", "grad_input", "grad_weight", "main_grad"
  ProductFacts facts = {};  // for an audit, without the path
};

// multiply(), reported as "path/result" to the watch, and to the audit in force.
void multiply(const WatchedProduct& watched, const at::Tensor& output, format::Format codes = format::Format::kE4m3);

}  // namespace plimsoll::ops
