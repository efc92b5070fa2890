// Settings of one use of autoscale, and the counts that it made. Every scaled tensor carries the session that it came
// from, so a backward pass and an optimizer's step run under that of their forward pass.
#pragma once

#include <c10/core/ScalarType.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "plimsoll/autoscale/policy.h"
#include "plimsoll/recipe/named.h"

namespace plimsoll::autoscale {

// The rounding of results that are written into a tensor in place.
enum class Rounding : uint8_t {
  kNearest,
  kStochastic,
  kRemainder,  // to nearest, and what is cut off a parameter is kept beside it for the next write
};

inline constexpr std::array<recipe::Named<Rounding>, 3> kRoundings = {
    {{"nearest", Rounding::kNearest}, {"stochastic", Rounding::kStochastic}, {"remainder", Rounding::kRemainder}}};

// Formats in which mm and addmm read their operands. Those with scales of blocks are a recipe's (recipe/recipe.h), with
// blocks along the sum: a parameter is its weight, what is no gradient its input.
enum class ProductFormat : uint8_t {
  kData,   // the data as they are
  kE4m3,   // codes with one power of two for a tensor
  kE5m2,   // the same
  kMxfp8,  // of Mxfp8: E4M3, an E8M0 scale for 32
  kNvfp4,  // of Nvfp4Scaling: 16 x 16 of a weight and 16 of the rest share a scale, gradients are rounded stochastically, and
           // a gradient and an input are both rotated
  kMxfp4,  // of Mxfp4Scaling, of its inputs: E2M1 to nearest, an E8M0 scale for 32
};

inline constexpr std::array<recipe::Named<ProductFormat>, 6> kProductFormats = {{{"data", ProductFormat::kData},
                                                                                 {"e4m3", ProductFormat::kE4m3},
                                                                                 {"e5m2", ProductFormat::kE5m2},
                                                                                 {"mxfp8", ProductFormat::kMxfp8},
                                                                                 {"nvfp4", ProductFormat::kNvfp4},
                                                                                 {"mxfp4", ProductFormat::kMxfp4}}};

struct Settings {
  at::ScalarType storage = at::kHalf;  // of data with at least one dimension: kHalf, kBFloat16, kFloat
  Rounding rounding = Rounding::kRemainder;
  Policy policy = {};
  // Formats of operands that are no gradients, and of gradients; kData: both.
  ProductFormat product_values = ProductFormat::kData, product_gradients = ProductFormat::kData;
  bool counts_range = false;  // RangeCounts, which take several passes over every result
};

// Calls of one operator, by the way in which they were computed.
struct CallCounts {
  int64_t storage = 0;   // by its rule, in the format of the data: the bounds say that nothing overflows
  int64_t wide = 0;      // by its rule, in FP32
  int64_t codes = 0;     // a product of codes
  int64_t fallback = 0;  // without a rule: values in FP32, and the scale measured
};

// Elements of results, other than zeros, that were rounded to 16 bits, and how many of them that lost.
struct RangeCounts {
  int64_t elements = 0;
  int64_t overflowed = 0;  // finite before, not afterwards
  int64_t small = 0;       // to zero, or to a subnormal number, which has lost bits
};

// A call while its session is inspected.
struct InspectedCall {
  std::string op;
  std::vector<Scale> operands, results;  // of the scaled ones
};

class Session {
 public:
  // Throws c10::Error for a storage format that is none of those beside Settings, and for an exponent beyond kLargestExponent.
  explicit Session(const Settings& settings);

  const Settings& settings() const { return settings_; }
  void count(const std::string& op, int64_t CallCounts::*how);
  std::map<std::string, CallCounts> counts() const;
  void add_range(const RangeCounts& more);
  RangeCounts range() const;
  void clear_counts();

  // From start to stop every call is noted.
  void start_inspection();
  std::vector<InspectedCall> stop_inspection();
  void note(InspectedCall call);
  static bool any_inspected() { return inspected_ > 0; }

  // Exponent with which the gradient of a loss begins: -log2 of the loss scale. It stays, until somebody changes it.
  int32_t gradient_exponent() const { return gradient_exponent_; }
  void set_gradient_exponent(int32_t exponent) { gradient_exponent_ = exponent; }

  // Method::kDelayed keeps the exponents that results needed, in the order of the calls since the last backward pass
  // began, which is that of every step.
  void begin_backward();
  // The exponent that the call at hand needed one step ago, or `now` if there was none like it.
  int32_t exchange_exponent(int64_t elements, int32_t now);

 private:
  static std::atomic<int> inspected_;  // sessions

  struct Needed {
    int64_t elements = 0;
    int32_t exponent = 0;
  };

  const Settings settings_;
  std::atomic<int32_t> gradient_exponent_ = 0;
  mutable std::mutex mutex_;
  std::map<std::string, CallCounts> counts_;
  RangeCounts range_;
  bool is_inspected_ = false;
  std::vector<InspectedCall> calls_;
  std::vector<Needed> needed_;
  size_t next_call_ = 0;
};

}  // namespace plimsoll::autoscale
