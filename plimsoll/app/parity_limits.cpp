#include "plimsoll/app/parity_limits.h"

#include "plimsoll/app/error.h"

namespace plimsoll::app {

void check_parity(const nlohmann::json& result, const std::vector<std::string>& dtypes, const ParityLimits& limits) {
  struct Limit {
    const char *member, *what;
    std::optional<double> bound;
    bool is_largest;
  };
  const Limit all[] = {{"logits_kl", "a mean KL of at most", limits.max_kl, true},
                       {"top1_agreement", "an agreement of at least", limits.min_agree, false},
                       {"perplexity", "a perplexity of at most", limits.max_ppl, true}};
  for (const std::string& dtype : dtypes) {
    const nlohmann::json& entry = result.at("dtypes").at(dtype);
    for (const Limit& limit : all) {
      if (!limit.bound) continue;
      const auto found = entry.find(limit.member);
      if (found == entry.end()) fail("parity: expected {} {} in {}, got none", limit.what, *limit.bound, dtype);
      if (found->is_null()) fail("parity: expected {} {} in {}, got Inf or NaN", limit.what, *limit.bound, dtype);
      const double figure = found->get<double>();
      if (limit.is_largest ? figure <= *limit.bound : figure >= *limit.bound) continue;
      fail("parity: expected {} {} in {}, got {:.6g}", limit.what, *limit.bound, dtype, figure);
    }
  }
}

}  // namespace plimsoll::app
