#include "plimsoll/app/same_run.h"

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "plimsoll/app/error.h"
#include "plimsoll/shard/communicator/gather_texts.h"

namespace plimsoll::app {
namespace {

using nlohmann::ordered_json;

// A value as a user reads it.
std::string said(const ordered_json& value) { return value.is_null() ? "nothing" : value.dump(); }

// Throws where a rank's values are not rank 0's.
void expect_rank_0s(const std::string& option, const ordered_json& value, const ordered_json& expected, size_t rank) {
  if (value == expected) return;
  refuse("--{}: expected {} on rank {}, as on rank 0, got {}", option, said(expected), rank, said(value));
}

}  // namespace

void expect_same_run(const TrainOptions& options, const ops::RankGroup& ranks) {
  const std::vector<std::string> runs = shard::gather_texts(ranks, options.common_to_ranks.dump());
  const ordered_json expected = ordered_json::parse(runs[0]);
  for (size_t rank = 1; rank < runs.size(); ++rank) {
    const ordered_json run = ordered_json::parse(runs[rank]);
    for (const auto& [option, value] : expected.items()) {
      expect_rank_0s(option, run.value(option, ordered_json()), value, rank);
    }
    // Another version of this program may have options that rank 0's lacks.
    for (const auto& [option, value] : run.items()) {
      expect_rank_0s(option, value, expected.value(option, ordered_json()), rank);
    }
  }
}

void expect_same_text(const std::string& digest, const ops::RankGroup& ranks) {
  const std::vector<std::string> digests = shard::gather_texts(ranks, digest);
  for (size_t rank = 1; rank < digests.size(); ++rank) {
    if (digests[rank] == digests[0]) continue;
    refuse("--data: expected text with the SHA-256 {} on rank {}, as on rank 0, got {}", digests[0], rank,
           digests[rank]);
  }
}

void begin_on_all(const ops::RankGroup& ranks, const std::function<void()>& body) {
  if (ranks.size() == 1) return body();
  constexpr char kDone = '+', kUsage = 'u', kFailed = 'f';
  std::string mine(1, kDone);
  try {
    body();
  } catch (const UsageError& error) {
    mine = kUsage + std::string(error.what());
  } catch (const std::exception& error) {
    mine = kFailed + std::string(error.what());
  }
  const std::vector<std::string> outcomes = shard::gather_texts(ranks, mine);
  for (size_t rank = 0; rank < outcomes.size(); ++rank) {
    const std::string& outcome = outcomes[rank];
    if (outcome.front() == kUsage) refuse("rank {}: {}", rank, outcome.substr(1));
    if (outcome.front() == kFailed) fail("rank {}: {}", rank, outcome.substr(1));
  }
}

}  // namespace plimsoll::app
