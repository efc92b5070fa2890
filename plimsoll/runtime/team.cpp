#include "plimsoll/runtime/team.h"

#include <omp.h>

#include <optional>

#include "plimsoll/runtime/isa_scope.h"
#include "plimsoll/runtime/overflow_traps.h"
#include "plimsoll/runtime/thread_places.h"
#include "plimsoll/runtime/threads.h"

namespace plimsoll::runtime {

void Team::wait() const {
  if (size_ == 1) return;  // a barrier would be that of a region around the team
#pragma omp barrier
}

void run_team(TeamFunction body) {
  OverflowLog* const log = overflow_log();
  const std::optional<Isa> scoped = scoped_isa();
  const int pool = threads();
  if (pool == 1) {
    const ArmOverflow arm(log);
    body(Team(0, 1));
    return;
  }
#pragma omp parallel num_threads(pool)
  {
    take_place(omp_get_thread_num(), pool);
    std::optional<ScopedIsa> scope;
    if (scoped) scope.emplace(*scoped);
    const ArmOverflow arm(log);
    body(Team(omp_get_thread_num(), omp_get_num_threads()));
  }
}

}  // namespace plimsoll::runtime
