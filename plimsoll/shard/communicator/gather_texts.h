// Exchange of bytes and words between ranks: results and errors of work that each does a part of.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "plimsoll/ops/ranks/rank_group.h"
#include "plimsoll/shard/communicator/communicator.h"

namespace plimsoll::shard {

// A collective: each rank's bytes, of any length, in the order of the ranks; with `to` on that rank alone, and nothing
// elsewhere. mine: uint8 [n].
std::vector<at::Tensor> gather_bytes(const Communicator& ranks, const at::Tensor& mine,
                                     std::optional<int64_t> to = std::nullopt);

// A collective: each rank's text, in the order of the ranks.
std::vector<std::string> gather_texts(const ops::RankGroup& ranks, std::string_view mine);

// A collective: what `body` returns on each rank. Where it throws on some, the first of their errors is an io::Error on
// all, so that they stay together.
std::vector<std::string> on_all(const ops::RankGroup& ranks, const std::function<std::string()>& body);

}  // namespace plimsoll::shard
