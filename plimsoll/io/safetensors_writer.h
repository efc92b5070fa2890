// A safetensors file that is written a tensor at a time, in any order.
#pragma once

#include <ATen/core/TensorBody.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "plimsoll/io/partial_file.h"
#include "plimsoll/io/safetensors_header.h"

namespace plimsoll::io {

// A tensor that is going to be written.
struct TensorPlan {
  std::string name;
  at::ScalarType dtype = at::kFloat;
  std::vector<int64_t> shape;

  int64_t bytes() const;
};

// Replaces the file in one step (see AtomicFile). The tensors lie as save_safetensors has them: largest dtype first, then
// in the order of the plans. Throws Error, as all members do.
class SafetensorsWriter {
 public:
  SafetensorsWriter(std::filesystem::path path, const std::vector<TensorPlan>& plans,
                    const SafetensorsMetadata& metadata);
  // Removes what was written unless it was committed.
  ~SafetensorsWriter();
  SafetensorsWriter(const SafetensorsWriter&) = delete;
  SafetensorsWriter& operator=(const SafetensorsWriter&) = delete;

  // A dense CPU tensor of any strides, of the dtype and shape that were planned.
  void write(const std::string& name, const at::Tensor& tensor);
  // Every tensor has been written.
  void commit();

 private:
  std::filesystem::path path_;
  PartialFile partial_;
  uint64_t data_offset_ = 0;
  std::map<std::string, SafetensorsEntry> left_;  // to be written
  bool committed_ = false;
};

}  // namespace plimsoll::io
