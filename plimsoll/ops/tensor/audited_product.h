// Rows of an audit (watch/audit.h) for matrix products.
#pragma once

#include <string>
#include <string_view>

#include "plimsoll/kernels/gemm/gemm.h"
#include "plimsoll/ops/tensor/gemm.h"
#include "plimsoll/recipe/recipe.h"

namespace plimsoll::ops {

// Facts about a layer's product that its operands do not show.
struct ProductFacts {
  std::string_view path = {};              // of the layer
  const recipe::Recipe* recipe = nullptr;  // that asked for the operands; nullptr: nobody did
  bool holds_weight = false;               // codes stand in the weight's place
  std::string controller = {};             // a controller's reason for the format; empty: none chose it
  std::string_view a_codes = {},
                   b_codes = {};  // format of the codes whose values the operand is; empty: it never was codes
};

// The name of a layer's product in audits, profiles and incidents: "gemm output".
std::string_view product_name(recipe::GemmKind kind);

// Adds a row to the audit in force on this thread; nothing where there is none. output: its format.
void audit_product(const Product& product, format::Format output, const ProductFacts& facts = {});

// A product of operands that no recipe describes.
struct PlainProduct {
  std::string_view op;
  const kernels::GemmOperand& a;
  const kernels::GemmOperand& b;
  int64_t k = 0;
  format::Format output = format::Format::kFp32;
  double operations = 0;
  std::string_view decided = "dtype", reason = {};
  bool autoscaled = false;  // the operands have scales of autoscale
};
void audit_product(const PlainProduct& product);

}  // namespace plimsoll::ops
