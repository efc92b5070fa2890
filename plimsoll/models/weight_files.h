// The weights of a Hugging Face directory, written a tensor at a time: model.safetensors, or shards and their index.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "plimsoll/io/safetensors_writer.h"

namespace plimsoll::models {

class WeightFiles {
 public:
  // Files are cut, in the order of the plans' names, where one would be larger than shard_bytes, unless one tensor is.
  // Throws io::Error, as all members do.
  WeightFiles(std::filesystem::path directory, std::vector<io::TensorPlan> plans, int64_t shard_bytes);

  void write(const std::string& name, const at::Tensor& tensor) { writers_.at(name)->write(name, tensor); }
  // Every tensor has been written. Weights of an earlier model under the names of Hugging Face are removed: readers would
  // prefer them, or nobody would read them.
  void commit();

 private:
  void remove_other_shards() const;

  std::filesystem::path directory_;
  std::vector<std::unique_ptr<io::SafetensorsWriter>> files_;
  std::map<std::string, io::SafetensorsWriter*> writers_;  // by tensor
  std::map<std::string, std::string> names_;               // of files, by tensor
  int64_t bytes_ = 0;
};

}  // namespace plimsoll::models
