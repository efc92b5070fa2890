// Whether all ranks were started to do the same, on the same text, and can.
#pragma once

#include <functional>
#include <string>

#include "plimsoll/app/train/train_options.h"
#include "plimsoll/ops/ranks/rank_group.h"

namespace plimsoll::app {

// A collective. Throws UsageError on every rank, which names a rank and the first option that differs from rank 0's,
// unless TrainOptions::common_to_ranks is the same on all.
void expect_same_run(const TrainOptions& options, const ops::RankGroup& ranks);

// A collective. digest: of the text that this rank trains on. Throws UsageError on every rank where one has another.
void expect_same_text(const std::string& digest, const ops::RankGroup& ranks);

// A collective: `body` on each rank. Where it throws on some, all throw: UsageError or Error, with the first one's text
// and its rank, so that nobody waits for a rank that cannot begin.
void begin_on_all(const ops::RankGroup& ranks, const std::function<void()>& body);

}  // namespace plimsoll::app
