#include "plimsoll/app/same_run.h"

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "plimsoll/app/error.h"
#include "plimsoll/shard/gather_texts.h"

namespace plimsoll::app {
namespace {

using nlohmann::ordered_json;

ordered_json run_of(const TrainOptions& options) {
  const ModelShape shape = shape_of(options);
  return {{"recipe", options.recipe},
          {"layers", shape.layers},
          {"dim", shape.dim},
          {"heads", shape.heads},
          {"context", shape.context},
          {"steps", options.steps},
          {"batch", options.batch},
          {"accumulate", options.accumulate},
          {"lr", options.lr},
          {"warmup", options.warmup},
          {"weight-decay", options.weight_decay},
          {"clip", options.clip},
          {"loss-scale", options.loss_scale},
          {"seed", options.seed},
          {"shard", options.shard},
          {"eval-every", options.eval_every},
          {"eval-windows", options.eval_windows},
          {"save-every", options.save_every},
          {"resume", options.resume}};
}

}  // namespace

void expect_same_run(const TrainOptions& options, const ops::RankGroup& ranks) {
  const std::vector<std::string> runs = shard::gather_texts(ranks, run_of(options).dump());
  const ordered_json expected = ordered_json::parse(runs[0]);
  for (size_t rank = 1; rank < runs.size(); ++rank) {
    const ordered_json run = ordered_json::parse(runs[rank]);
    for (const auto& [name, value] : expected.items()) {
      if (run.at(name) != value) {
        refuse("--{}: expected {} on rank {}, as on rank 0, got {}", name, value.dump(), rank, run.at(name).dump());
      }
    }
  }
}

}  // namespace plimsoll::app
