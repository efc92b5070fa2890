// What ranks tell each other in words: results and errors of work that each does a part of.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "plimsoll/ops/ranks/rank_group.h"

namespace plimsoll::shard {

// A collective: each rank's text, in the order of the ranks.
std::vector<std::string> gather_texts(const ops::RankGroup& ranks, std::string_view mine);

// A collective: what `body` returns on each rank. Where it throws on some, the first of their errors is an io::Error on
// all, so that they stay together.
std::vector<std::string> on_all(const ops::RankGroup& ranks, const std::function<std::string()>& body);

}  // namespace plimsoll::shard
