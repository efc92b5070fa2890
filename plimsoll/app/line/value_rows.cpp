#include "plimsoll/app/line/value_rows.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "plimsoll/app/finite_json.h"
#include "plimsoll/gauge/search.h"

namespace plimsoll::app {

using nlohmann::json;

json value_rows(const models::Amaxes& seen, const models::Amaxes& bounds) {
  std::vector<std::pair<std::string, float>> ordered(seen.begin(), seen.end());
  std::ranges::stable_sort(ordered, [](const auto& a, const auto& b) { return a.second > b.second; });
  json rows = json::array();
  for (const auto& [name, amax] : ordered) {
    json row = {
        {"name", name}, {"amax", finite_or_null(amax)}, {"headroom_bits", finite_or_null(gauge::fp16_headroom(amax))}};
    if (const auto bound = bounds.find(name); bound != bounds.end()) {
      row["bound"] = finite_or_null(bound->second);
      row["bound_headroom_bits"] = finite_or_null(gauge::fp16_headroom(bound->second));
    }
    rows.push_back(std::move(row));
  }
  return rows;
}

}  // namespace plimsoll::app
