#include "plimsoll/gauge/measured_search.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <utility>

namespace plimsoll::gauge {
namespace {

using models::Exponents;

constexpr double kLeastGain = 1.0 / 64;  // of the error, for a move
constexpr std::array kSteps = {3, 1};    // doublings of a move

// Exponents that move together: the residual stream's, or those of pairs.
struct Coordinate {
  bool residual = false;
  std::vector<size_t> pairs = {};
};

// The part of a pair's module by which it is known in every layer: "query", "v", "up".
std::string kind_of(const std::string& pair) { return pair.substr(pair.find_last_of('.') + 1); }

std::vector<Coordinate> coordinates_of(const models::Freedoms& freedoms) {
  std::map<std::string, std::vector<size_t>> kinds;
  for (size_t i = 0; i < freedoms.pairs.size(); ++i) kinds[kind_of(freedoms.pairs[i])].push_back(i);
  std::vector<Coordinate> coordinates = {{.residual = true}};
  for (const auto& [kind, pairs] : kinds) coordinates.push_back({.pairs = pairs});
  for (size_t i = 0; i < freedoms.pairs.size(); ++i) coordinates.push_back({.pairs = {i}});
  return coordinates;
}

Exponents moved(Exponents exponents, const Coordinate& coordinate, int step) {
  if (coordinate.residual) exponents.residual += step;
  for (const size_t pair : coordinate.pairs) exponents.pairs[pair] += step;
  return exponents;
}

class Descent {
 public:
  explicit Descent(const MeasuredSearch& search) : search_(search) {}

  MeasuredExponents run() {
    const std::vector<Exponents>& candidates = search_.candidates;
    TORCH_CHECK(!candidates.empty() && search_.most_measurements > 0,
                "gauge: expected a candidate and a measurement, got ", candidates.size(), " and ",
                search_.most_measurements);
    MeasuredExponents result{.exponents = candidates.front(), .error = error_of(candidates.front()).value()};
    result.first_error = result.error;
    for (const Exponents& candidate : candidates) take_if_less(result, candidate, result.error);
    descend(result);
    keep_zeros(result);
    result.measurements = measurements_;
    return result;
  }

 private:
  // Nothing: not feasible, or no measurement is left.
  std::optional<double> error_of(const Exponents& exponents) {
    const std::pair key(exponents.residual, exponents.pairs);
    if (const auto found = errors_.find(key); found != errors_.end()) return found->second;
    if (measurements_ == search_.most_measurements) return std::nullopt;
    if (measurements_ > 0 && !search_.is_feasible(exponents)) return std::nullopt;
    ++measurements_;
    const double error = search_.error(exponents);
    return errors_[key] = std::isfinite(error) ? error : std::numeric_limits<double>::infinity();
  }

  bool take_if_less(MeasuredExponents& best, const Exponents& exponents, double than) {
    const std::optional<double> error = error_of(exponents);
    if (!error || !(*error < than)) return false;
    best.exponents = exponents;
    best.error = *error;
    return true;
  }

  bool improve(MeasuredExponents& best, const Coordinate& coordinate, int step) {
    bool improved = false;
    while (take_if_less(best, moved(best.exponents, coordinate, step), best.error * (1 - kLeastGain))) improved = true;
    return improved;
  }

  void descend(MeasuredExponents& best) {
    const std::vector<Coordinate> coordinates = coordinates_of(search_.freedoms);
    for (bool improved = true; improved;) {
      improved = false;
      for (const int step : kSteps) {
        for (const Coordinate& coordinate : coordinates) {
          improved |= improve(best, coordinate, step) || improve(best, coordinate, -step);
        }
      }
    }
  }

  void keep_zeros(MeasuredExponents& best) {
    const Exponents zeros = {.residual = 0, .pairs = std::vector<int>(search_.freedoms.pairs.size())};
    const auto found = errors_.find({zeros.residual, zeros.pairs});
    if (found == errors_.end() || best.error < found->second * (1 - kLeastGain)) return;
    best.exponents = zeros;
    best.error = found->second;
  }

  const MeasuredSearch& search_;
  std::map<std::pair<int, std::vector<int>>, double> errors_;
  int64_t measurements_ = 0;
};

}  // namespace

MeasuredExponents search_measured(const MeasuredSearch& search) { return Descent(search).run(); }

std::vector<Exponents> uniform_exponents(const models::Freedoms& freedoms) {
  std::vector<Exponents> result;
  for (const int residual : {0, -3, -6, -9, -12}) {
    const auto add = [&](int pairs, int queries) {
      Exponents exponents{.residual = residual};
      for (const std::string& pair : freedoms.pairs) {
        const bool is_query = kind_of(pair).starts_with("q");
        exponents.pairs.push_back(is_query ? queries : pairs);
      }
      result.push_back(std::move(exponents));
    };
    add(0, 0);
    if (residual == 0) continue;
    add(residual, residual);
    add(residual, -residual);
  }
  return result;
}

}  // namespace plimsoll::gauge
