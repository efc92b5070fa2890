// Recipe `auto`: each matrix product starts in the narrowest format of a ladder, and a controller moves it up when what
// is measured of its operands says so, and down again when it is quiet. The rule itself is automatic_rule.h.
//
//   Automatic recipe = automatic_from_text("auto:e2m1>e4m3>bf16");
//   Recipe layer = recipe.at({.grad_input = 2});  // grad_input in bf16, the other two products in e2m1
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "plimsoll/recipe/recipe.h"

namespace plimsoll::recipe {

// A format of the ladder, and the recipe of products that are in it.
struct Rung {
  std::string name;  // "e2m1", "e4m3", "bf16", or the name of a recipe with codes
  Recipe recipe;
};

// Bounds and waiting times of the rule. A step is measured where measures() says so; all else counts steps.
struct AutomaticLimits {
  int64_t every = 16;          // steps between two measured ones
  int64_t votes = 2;           // of the last `ballots` measured steps that promote a product
  int64_t ballots = 4;         // at most 64
  int64_t quiet = 200;         // steps without a vote before a product is demoted
  int64_t window = 500;        // steps between two demotions of one product
  double last_share = 0.1;     // of the schedule, in which nothing is demoted
  double demote_share = 0.75;  // of the bounds, from which on the mean load forbids a demotion
  double mean_decay = 0.9;     // of the exponential mean, a measured step
  // Share of the elements of an input or a weight that may become zero. Rows of outliers take all codes of a tensor with
  // one scale without a large error in any group of columns: the rows that are lost are small beside them. Of E2M1 three
  // times as much: its blocks lose all below 1 / 24 of their amax, a quarter of many an ordinary operand.
  double flushed = 0.25;
  // Bounds of the error of one operand, as multiples of the rounding error of its format (rounding_error). By default an
  // operand may lose three times as much to the ends of its format as to its mantissa, a gradient, whose magnitudes
  // spread over more binades, fifteen times.
  std::array<double, 3> bound = {2, 2, 4};  // of Role

  friend bool operator==(const AutomaticLimits&, const AutomaticLimits&) = default;
};

// Rungs of the three products of one layer, counted from the narrowest.
struct ProductRungs {
  int64_t output = 0, grad_input = 0, grad_weight = 0;

  int64_t& of(GemmKind gemm);
  int64_t of(GemmKind gemm) const { return ProductRungs(*this).of(gemm); }
  friend bool operator==(const ProductRungs&, const ProductRungs&) = default;
};

struct Automatic {
  std::vector<Rung> ladder;  // four bits, eight bits, none: one of them may be missing, but not the last
  AutomaticLimits limits = {};

  int64_t last_rung() const { return static_cast<int64_t>(ladder.size()) - 1; }
  bool has_codes(int64_t rung) const { return rung < last_rung(); }
  const Recipe& wide() const { return ladder.back().recipe; }
  // The recipe of a layer whose products are on these rungs.
  Recipe at(const ProductRungs& rungs) const;
  // An operand of a product that is on this rung, as Recipe::stored_operand().
  OperandRecipe stored_operand(int64_t rung, Role role, GemmKind gemm) const;
  // The rung of a product that reads this operand; the last one for an operand that none of them has.
  int64_t rung_of(const OperandRecipe& stored, Role role, GemmKind gemm) const;
  // The largest error of an operand with which its products stay on this rung, and the largest share of zeros.
  double bound(int64_t rung, Role role) const;
  double flushed(int64_t rung, Role role) const;

 private:
  Format format_of(int64_t rung, Role role) const;
};

// Root of the mean squared relative error of rounding to nearest, of numbers whose logarithms are spread evenly over a
// binade: 2^-(mantissa bits + 1) sqrt(2 ln 2 / 9). Inside a binade the squared error is 2^-2(mantissa bits + 1) / 3 of
// the binade's start squared, and the mean square of the numbers is 3 / (2 ln 2) of it.
double rounding_error(Format format);

// Whether the text asks for this recipe: "auto", "auto:LADDER" or JSON with that name.
bool is_automatic(std::string_view text);

// Throws std::invalid_argument: an unknown format or argument, a ladder of one rung, with two of one width or in another
// order, a value of another type or out of range.
Automatic automatic_from_text(std::string_view text);

// As JSON with every argument, which automatic_from_text reads.
std::string to_json(const Automatic& recipe);

}  // namespace plimsoll::recipe
