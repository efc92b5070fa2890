// Assignment of the parameters' states to ranks.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace plimsoll::shard {

// Each goes to the rank with the least so far, the first of equals: fairscale's rule, under which parameters that are
// added later do not move those that are there. sizes: elements.
std::vector<int64_t> balanced_owners(std::span<const int64_t> sizes, int64_t world_size);
// The same where each rank has `loads` elements already, to which these are added.
std::vector<int64_t> balanced_owners(std::span<const int64_t> sizes, std::vector<int64_t>& loads);

}  // namespace plimsoll::shard
