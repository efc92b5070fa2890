#include "plimsoll/models/weight_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <regex>
#include <set>
#include <utility>

#include "plimsoll/io/atomic_file.h"

namespace plimsoll::models {
namespace {

constexpr const char* kWeightsFile = "model.safetensors";
constexpr const char* kIndexFile = "model.safetensors.index.json";

bool is_shard(const std::string& file) {
  static const std::regex kShard(R"(model-\d{5}-of-\d{5}\.safetensors)");
  return std::regex_match(file, kShard);
}

std::vector<std::vector<io::TensorPlan>> shards_of(std::vector<io::TensorPlan> plans, int64_t bytes) {
  std::ranges::sort(plans, {}, &io::TensorPlan::name);
  std::vector<std::vector<io::TensorPlan>> shards(1);
  int64_t held = 0;
  for (io::TensorPlan& plan : plans) {
    const int64_t size = plan.bytes();
    if (held > 0 && held + size > bytes) {
      shards.emplace_back();
      held = 0;
    }
    shards.back().push_back(std::move(plan));
    held += size;
  }
  return shards;
}

}  // namespace

WeightFiles::WeightFiles(std::filesystem::path directory, std::vector<io::TensorPlan> plans, int64_t shard_bytes)
    : directory_(std::move(directory)) {
  const io::SafetensorsMetadata metadata = {{"format", "pt"}};  // transformers asks for it
  const std::vector<std::vector<io::TensorPlan>> shards = shards_of(std::move(plans), shard_bytes);
  for (size_t i = 0; i < shards.size(); ++i) {
    const std::string file =
        shards.size() == 1 ? kWeightsFile : fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, shards.size());
    files_.push_back(std::make_unique<io::SafetensorsWriter>(directory_ / file, shards[i], metadata));
    for (const io::TensorPlan& plan : shards[i]) {
      writers_.emplace(plan.name, files_.back().get());
      names_.emplace(plan.name, file);
      bytes_ += plan.bytes();
    }
  }
}

void WeightFiles::commit() {
  for (const auto& file : files_) file->commit();
  if (files_.size() == 1) {
    std::filesystem::remove(directory_ / kIndexFile);
  } else {
    const nlohmann::json index = {{"metadata", {{"total_size", bytes_}}}, {"weight_map", names_}};
    io::write_file(directory_ / kIndexFile, index.dump(2) + "\n");
    std::filesystem::remove(directory_ / kWeightsFile);  // of an earlier model: readers prefer it to the shards
  }
  remove_other_shards();
}

// Shards of an earlier model, of another number of files: no index lists them any more.
void WeightFiles::remove_other_shards() const {
  std::set<std::string> ours;
  for (const auto& [tensor, file] : names_) ours.insert(file);
  std::vector<std::filesystem::path> others;
  for (const auto& entry : std::filesystem::directory_iterator(directory_)) {
    const std::string file = entry.path().filename().native();
    if (is_shard(file) && !ours.contains(file)) others.push_back(entry.path());
  }
  for (const std::filesystem::path& other : others) std::filesystem::remove(other);
}

}  // namespace plimsoll::models
