#include "plimsoll/gauge/measured_search.h"

#include <c10/util/Exception.h>
#include <gmock/gmock.h>

#include <cmath>
#include <limits>
#include <set>

namespace plimsoll::gauge {
namespace {

using models::Exponents;
using ::testing::Contains;

const models::Freedoms& freedoms() {
  static const models::Freedoms all = {
      .pairs = {"0.query", "0.value", "1.query", "1.value"}, .weights = {}, .values = {}};
  return all;
}

Exponents exponents(int residual, std::vector<int> pairs = {0, 0, 0, 0}) {
  return {.residual = residual, .pairs = std::move(pairs)};
}

// A search that writes down what it measures.
struct Watched {
  MeasuredSearch search{.freedoms = freedoms(),
                        .candidates = {exponents(0)},
                        .is_feasible = [](const Exponents&) { return true; },
                        .error = {}};
  std::vector<std::pair<int, std::vector<int>>> measured;

  MeasuredExponents run(const std::function<double(const Exponents&)>& error) {
    search.error = [this, error](const Exponents& each) {
      measured.emplace_back(each.residual, each.pairs);
      return error(each);
    };
    return search_measured(search);
  }
};

// Grows by a quarter with each doubling away from `want`.
double bowl(const Exponents& at, const Exponents& want) {
  double error = 1 + std::abs(at.residual - want.residual) / 4.0;
  for (size_t i = 0; i < at.pairs.size(); ++i) error += std::abs(at.pairs[i] - want.pairs[i]) / 4.0;
  return error;
}

TEST(MeasuredSearch, FindsTheLowestPointOfABowl) {
  for (const Exponents& want :
       {exponents(-7, {3, 0, 3, -2}), exponents(0, {0, 0, 0, 9}), exponents(5, {-1, -1, -1, -1})}) {
    Watched watched;
    watched.search.most_measurements = 1000;
    const MeasuredExponents found = watched.run([&](const Exponents& at) { return bowl(at, want); });
    EXPECT_EQ(found.error, 1);
    EXPECT_EQ(found.exponents.residual, want.residual);
    EXPECT_EQ(found.exponents.pairs, want.pairs);
    EXPECT_EQ(found.first_error, bowl(exponents(0), want));
  }
}

TEST(MeasuredSearch, MeasuresNothingTwiceAndNoMoreThanItMay) {
  for (const int64_t most : {1, 2, 5, 40, 1000}) {
    Watched watched;
    watched.search.most_measurements = most;
    watched.search.candidates = {exponents(0), exponents(-3), exponents(0), exponents(-3)};
    const MeasuredExponents found = watched.run([](const Exponents& at) {
      return bowl(at, exponents(-20, {9, 9, 9, 9}));
    });
    const std::set<std::pair<int, std::vector<int>>> different(watched.measured.begin(), watched.measured.end());
    EXPECT_EQ(different.size(), watched.measured.size());
    EXPECT_EQ(static_cast<int64_t>(watched.measured.size()), found.measurements);
    EXPECT_LE(found.measurements, most);
  }
}

TEST(MeasuredSearch, IsNoWorseThanEachFeasibleCandidate) {
  // No error can be told from its neighbours': only the candidates help.
  const auto error = [](const Exponents& at) { return 1 + std::abs(std::sin(at.residual * 12.9898 + at.pairs[0])); };
  Watched watched;
  watched.search.candidates = uniform_exponents(freedoms());
  watched.search.is_feasible = [](const Exponents& at) { return at.residual != -6; };
  const MeasuredExponents found = watched.run(error);
  for (const Exponents& candidate : uniform_exponents(freedoms())) {
    if (candidate.residual != -6) {
      EXPECT_LE(found.error, error(candidate));
    }
  }
}

TEST(MeasuredSearch, MeasuresNothingThatIsNotFeasible) {
  Watched watched;
  watched.search.is_feasible = [](const Exponents& at) { return at.residual >= -2; };
  const MeasuredExponents found = watched.run([](const Exponents& at) { return bowl(at, exponents(-7)); });
  EXPECT_EQ(found.exponents.residual, -2);
  for (const auto& [residual, pairs] : watched.measured) EXPECT_GE(residual, -2);
}

TEST(MeasuredSearch, LeavesWhatIsNotFinite) {
  Watched watched;
  watched.search.candidates = {exponents(0), exponents(-3)};
  const MeasuredExponents found = watched.run([](const Exponents& at) {
    if (at.residual == 0) return std::numeric_limits<double>::quiet_NaN();
    return at.residual < -4 ? std::numeric_limits<double>::infinity() : bowl(at, exponents(-6));
  });
  EXPECT_EQ(found.first_error, std::numeric_limits<double>::infinity());
  EXPECT_EQ(found.exponents.residual, -4);
}

TEST(MeasuredSearch, AModelThatFitsStaysUnlessMoreThanRoundingIsGained) {
  for (const double gain : {0.01, 0.02}) {
    Watched watched;
    watched.search.candidates = {exponents(-1), exponents(0), exponents(-3)};
    const MeasuredExponents found =
        watched.run([gain](const Exponents& at) { return at.residual == -3 ? 1 - gain : 1.0; });
    EXPECT_EQ(found.exponents.residual, gain < 1.0 / 64 ? 0 : -3);
  }
}

TEST(MeasuredSearch, IsTheSameEachTime) {
  const auto error = [](const Exponents& at) { return 1 + std::abs(std::sin(at.residual * 78.233 + at.pairs[1])); };
  Watched one, two;
  const MeasuredExponents first = one.run(error), second = two.run(error);
  EXPECT_EQ(one.measured, two.measured);
  EXPECT_EQ(first.exponents.pairs, second.exponents.pairs);
}

TEST(MeasuredSearch, RefusesToSearchNothing) {
  Watched watched;
  watched.search.candidates.clear();
  EXPECT_THROW(watched.run([](const Exponents&) { return 1.0; }), c10::Error);
}

TEST(UniformExponents, AreOneNumberForAll) {
  const std::vector<Exponents> all = uniform_exponents(freedoms());
  std::vector<std::pair<int, std::vector<int>>> pairs;
  for (const Exponents& each : all) pairs.emplace_back(each.residual, each.pairs);
  EXPECT_EQ(pairs.size(), 13u);
  EXPECT_THAT(pairs, Contains(std::pair(0, std::vector<int>{0, 0, 0, 0})));
  EXPECT_THAT(pairs, Contains(std::pair(-9, std::vector<int>{0, 0, 0, 0})));
  EXPECT_THAT(pairs, Contains(std::pair(-9, std::vector<int>{-9, -9, -9, -9})));
  EXPECT_THAT(pairs, Contains(std::pair(-9, std::vector<int>{9, -9, 9, -9})));
}

}  // namespace
}  // namespace plimsoll::gauge
