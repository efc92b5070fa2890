// What one use of autoscale has fixed, and what it has seen. Every scaled tensor carries the session that it came from,
// so a backward pass and an optimizer's step run under that of their forward pass.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>

namespace plimsoll::autoscale {

// Of results that are written into a tensor in place.
enum class Rounding : uint8_t {
  kNearest,
  kStochastic,
  kRemainder,  // to nearest, and what is cut off a parameter is kept beside it for the next write
};

struct Settings {
  at::ScalarType storage = at::kHalf;  // of data with at least one dimension: kHalf, kBFloat16, kFloat
  Rounding rounding = Rounding::kRemainder;
};

// How the calls of one operator were computed.
struct CallCounts {
  int64_t storage = 0;   // by its rule, in the format of the data: the bounds say that nothing overflows
  int64_t wide = 0;      // by its rule, in FP32
  int64_t fallback = 0;  // without a rule: values in FP32, and the scale measured
};

class Session {
 public:
  explicit Session(Settings settings) : settings_(settings) {}

  const Settings& settings() const { return settings_; }
  void count(const std::string& op, int64_t CallCounts::*how);
  std::map<std::string, CallCounts> counts() const;
  void clear_counts();

 private:
  const Settings settings_;
  mutable std::mutex mutex_;
  std::map<std::string, CallCounts> counts_;
};

}  // namespace plimsoll::autoscale
