// Whether all ranks were started to do the same.
#pragma once

#include "plimsoll/app/train_options.h"
#include "plimsoll/ops/rank_group.h"

namespace plimsoll::app {

// A collective. Throws UsageError on every rank, which names a rank and the first option that differs from rank 0's,
// unless all have the same, as far as it changes what is computed, exchanged or saved.
void expect_same_run(const TrainOptions& options, const ops::RankGroup& ranks);

}  // namespace plimsoll::app
