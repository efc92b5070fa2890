#include "plimsoll/bind/shard_library.h"

namespace plimsoll::bind {

TORCH_LIBRARY_FRAGMENT(plimsoll, library) {
  register_ranks(library);  // which all others take
  register_findings(library);
  register_checkpoints(library);
  register_fully_sharded(library);
  register_hooked_buckets(library);
  register_gradient_reducer(library);
  register_parameter_shares(library);
}

}  // namespace plimsoll::bind
