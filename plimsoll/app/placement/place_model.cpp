#include <utility>

#include "plimsoll/app/placement/fully_sharded_model.h"
#include "plimsoll/app/placement/placed_model.h"
#include "plimsoll/app/placement/replicated_model.h"
#include "plimsoll/optim/adamw.h"
#include "plimsoll/optim/groups.h"
#include "plimsoll/runtime/unexpected.h"
#include "plimsoll/shard/data_parallel/sharded_data_parallel.h"
#include "plimsoll/shard/optimizer/sharded_optimizer.h"

namespace plimsoll::app {

std::unique_ptr<PlacedModel> place_model(const std::shared_ptr<models::LanguageModel>& model,
                                         const std::shared_ptr<const shard::Communicator>& ranks,
                                         const Placement& placement) {
  using shard::Sharing;
  torch::nn::Module& module = model->module();
  const optim::AdamWSettings settings{
      .optimizer_state = placement.optimizer_state, .masters = placement.masters, .seed = placement.seed};
  const auto groups = [&] { return optim::decay_groups(module.named_parameters(), placement.adamw); };
  const shard::DataParallelOptions averaged{.compression = placement.compression};
  const auto average = [&]() -> std::shared_ptr<shard::DistributedDataParallel> {
    if (ranks->size() == 1) return nullptr;
    return std::make_shared<shard::DistributedDataParallel>(module, ranks, averaged);
  };
  switch (placement.sharing) {
    case Sharing::kNone:
      if (placement.releases_gradients) {
        return std::make_unique<ReleasedModel>(model, ranks, std::make_unique<optim::AdamW>(groups(), settings));
      }
      [[fallthrough]];
    case Sharing::kDdp:
      return std::make_unique<ReplicatedModel>(model, ranks, std::make_unique<optim::AdamW>(groups(), settings),
                                               average());
    case Sharing::kZero1:
      return std::make_unique<SharedStatesModel>(
          model, ranks, std::make_unique<shard::ShardedOptimizer>(groups(), ranks, settings), average());
    case Sharing::kZero2: {
      auto optimizer = std::make_unique<shard::ShardedOptimizer>(groups(), ranks, settings);
      std::shared_ptr<shard::DistributedDataParallel> averaging;
      if (ranks->size() > 1)
        averaging = std::make_shared<shard::ShardedDataParallel>(module, *optimizer, ranks, averaged);
      return std::make_unique<SharedGradientsModel>(model, ranks, std::move(optimizer), std::move(averaging));
    }
    case Sharing::kFsdp:
      return std::make_unique<FullyShardedModel>(model, ranks, placement);
  }
  runtime::unexpected("place_model", static_cast<int>(placement.sharing));
}

}  // namespace plimsoll::app
