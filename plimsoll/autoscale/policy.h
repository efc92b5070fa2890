// The methods of scaling that one engine runs, so that they can be compared: the exponent at which a tensor enters, and
// the one that a result gets. Arithmetic on the host, without torch.
#pragma once

#include <array>
#include <cstdint>
#include <optional>

#include "plimsoll/autoscale/scale.h"
#include "plimsoll/recipe/named.h"

namespace plimsoll::autoscale {

enum class Method : uint8_t {
  kAutoscale,    // as the rules say; what they cannot say, and what the format would not hold, is measured
  kStatic,       // as the rules say, and nothing is measured: what they cannot say keeps the operands' exponent
  kPublished,    // the same, with exponents rounded down and nothing kept of what that cuts off: Scalify's first code
  kGradientRms,  // kStatic, and gradients are measured where they enter a product
  kAmax,         // every result is measured: its largest element is next to the format's largest
  kDelayed,      // the same, one step late
  kFixed,        // one exponent for all
  kCarried,      // the operands' exponent, which is 0 but for gradients, where the loss began elsewhere: loss scaling
  kUnit,         // kCarried, and products are multiplied by what brings them to unit size: another model
};

inline constexpr std::array<recipe::Named<Method>, 9> kMethods = {{{"autoscale", Method::kAutoscale},
                                                                   {"static", Method::kStatic},
                                                                   {"published", Method::kPublished},
                                                                   {"rms_grad", Method::kGradientRms},
                                                                   {"amax", Method::kAmax},
                                                                   {"delayed", Method::kDelayed},
                                                                   {"fixed", Method::kFixed},
                                                                   {"carried", Method::kCarried},
                                                                   {"unit", Method::kUnit}}};

struct Policy {
  Method method = Method::kAutoscale;
  int32_t exponent = 0;  // of kFixed
};

// Origin of a value. An origin other than kResult has no history: shapes say nothing about the size of such a value.
enum class Origin : uint8_t {
  kEntering,      // a plain tensor
  kLossGradient,  // the gradient of a loss's input
  kResult,
};

// With the exponent that the method gives it. is_free: the operator has a factor that any shift goes into.
Scale settled_by(const Policy& policy, const Scale& scale, bool is_free);

// The scale of a result, where the method does not measure it. expected: as the rule foresees it; nullptr: it says
// nothing. exponent: of the data as computed. largest: what bounds may be for the format to hold the data.
std::optional<Scale> scale_without_looking(const Policy& policy, Origin origin, const Scale* expected, int32_t exponent,
                                           double largest);

// With the exponent that the method gives data of this measured scale.
Scale placed(const Policy& policy, const Scale& measured);

// The scale of a factor that is a number.
Scale number_scale(const Policy& policy, double number);

// Whether results that 16 bits of one exponent do not hold have FP32 data (Spread). Policies that measure nothing are there
// to be compared, and show what 16 bits do.
bool widens_spread(const Policy& policy);

// Whether a tensor keeps its exponent when something is written into it that no rule foresees.
bool keeps_exponents(const Policy& policy);

}  // namespace plimsoll::autoscale
