// torch.classes.plimsoll.Checkpoint and CheckpointSaver: what plimsoll.shard saves and loads with.
#include "plimsoll/bind/shard_checkpoint.h"

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "plimsoll/bind/rank_group.h"
#include "plimsoll/bind/shard_library.h"
#include "plimsoll/io/mapping_guard.h"
#include "plimsoll/shard/checkpoint/checkpoint_saver.h"
#include "plimsoll/shard/communicator/communicator.h"

namespace plimsoll::bind {

std::vector<std::tuple<std::string, std::string, std::string, std::vector<int64_t>>> Checkpoint::tensors() const {
  std::vector<std::tuple<std::string, std::string, std::string, std::vector<int64_t>>> result;
  for (const auto& [section, saved] : reader.manifest().sections) {
    for (const auto& [name, tensor] : saved) result.emplace_back(section, name, tensor.dtype, tensor.shape);
  }
  return result;
}

std::vector<std::tuple<std::string, std::vector<int64_t>, int64_t, int64_t, at::Tensor>> pieces_of(
    std::vector<io::TensorPiece> pieces) {
  std::vector<std::tuple<std::string, std::vector<int64_t>, int64_t, int64_t, at::Tensor>> result;
  for (io::TensorPiece& piece : pieces) {
    result.emplace_back(piece.name, piece.shape, piece.begin, piece.end, piece.values);
  }
  return result;
}

namespace {

c10::intrusive_ptr<Checkpoint> open_checkpoint(const std::string& directory) {
  io::CheckpointReader reader(directory);
  reader.verify(reader.files());
  return c10::make_intrusive<Checkpoint>(std::move(reader));
}

std::optional<c10::intrusive_ptr<Checkpoint>> open_latest_checkpoint(const std::string& run,
                                                                     const RanksPointer& ranks) {
  auto latest = shard::open_latest_checkpoint(run, *ranks->communicator, ranks->communicator->rank());
  if (!latest) return std::nullopt;
  return c10::make_intrusive<Checkpoint>(std::move(latest->reader), std::move(latest->refused));
}

using Whole = std::tuple<std::string, std::string, at::Tensor>;                                // section, name
using Part = std::tuple<std::string, std::string, std::vector<int64_t>, int64_t, at::Tensor>;  // shape, begin

// Tensors given whole are the same on all ranks; of parts, this rank alone has these elements.
shard::RankCheckpoint checkpoint_of(int64_t step, const std::string& state, const std::vector<Whole>& wholes,
                                    const std::vector<Part>& parts, const shard::Communicator& ranks) {
  shard::RankCheckpoint checkpoint{.step = step, .sections = {}, .state = nlohmann::json::parse(state)};
  std::map<std::string, io::TensorMap> replicated;
  for (const auto& [section, name, tensor] : wholes) replicated[section].emplace(name, tensor);
  for (const auto& [section, tensors] : replicated) {
    checkpoint.sections[section] = shard::share_of_replicated(tensors, ranks, ranks.rank());
  }
  for (const auto& [section, name, shape, begin, values] : parts) {
    checkpoint.sections[section].push_back(
        {.name = name, .shape = shape, .begin = begin, .end = begin + values.numel(), .values = values});
  }
  return checkpoint;
}

class Saver : public torch::CustomClassHolder {
 public:
  Saver(std::string run, int64_t keep, bool asynchronous, const RanksPointer& ranks)
      : ranks_(ranks->communicator),
        saver_({.run = std::move(run), .keep = keep, .asynchronous = asynchronous}, ranks_, ranks_->rank()) {}

  void save(int64_t step, const std::string& state, const std::vector<Whole>& wholes, const std::vector<Part>& parts) {
    saver_.save(checkpoint_of(step, state, wholes, parts, *ranks_));
  }
  void wait() { saver_.wait(); }

 private:
  std::shared_ptr<const shard::Communicator> ranks_;
  shard::CheckpointSaver saver_;
};

c10::intrusive_ptr<Saver> new_saver(std::string run, const RanksPointer& ranks, int64_t keep, bool asynchronous) {
  return c10::make_intrusive<Saver>(std::move(run), keep, asynchronous, ranks);
}

}  // namespace

void register_checkpoints(torch::Library& library) {
  library.class_<Checkpoint>("Checkpoint")
      .def("step", [](const c10::intrusive_ptr<Checkpoint>& self) { return self->reader.step(); })
      .def("world_size", [](const c10::intrusive_ptr<Checkpoint>& self) { return self->reader.manifest().world_size; })
      .def("directory", [](const c10::intrusive_ptr<Checkpoint>& self) { return self->reader.directory().native(); })
      .def("state", [](const c10::intrusive_ptr<Checkpoint>& self) { return self->reader.state().dump(); })
      .def("refused", [](const c10::intrusive_ptr<Checkpoint>& self) { return self->refused; })
      .def("tensors", [](const c10::intrusive_ptr<Checkpoint>& self) { return self->tensors(); })
      .def("check_files", [](const c10::intrusive_ptr<Checkpoint>&) { io::check_mapped_files(); })
      .def("read", [](const c10::intrusive_ptr<Checkpoint>& self, const std::string& section,
                      const std::string& name) { return self->reader.read(section, name); })
      .def("read_range",
           [](const c10::intrusive_ptr<Checkpoint>& self, const std::string& section, const std::string& name,
              int64_t begin, int64_t end) { return self->reader.read(section, name, begin, end); });
  library.class_<Saver>("CheckpointSaver")
      .def("save", [](const c10::intrusive_ptr<Saver>& self, int64_t step, const std::string& state,
                      const std::vector<Whole>& wholes,
                      const std::vector<Part>& parts) { self->save(step, state, wholes, parts); })
      .def("wait", [](const c10::intrusive_ptr<Saver>& self) { self->wait(); });
  library.def(
      "checkpoint_saver(str run, __torch__.torch.classes.plimsoll.Ranks ranks, *, int keep, bool asynchronous) -> "
      "__torch__.torch.classes.plimsoll.CheckpointSaver",
      &new_saver);
  library.def("open_checkpoint(str directory) -> __torch__.torch.classes.plimsoll.Checkpoint", &open_checkpoint);
  library.def(
      "open_latest_checkpoint(str run, __torch__.torch.classes.plimsoll.Ranks ranks) -> "
      "__torch__.torch.classes.plimsoll.Checkpoint?",
      &open_latest_checkpoint);
}

}  // namespace plimsoll::bind
