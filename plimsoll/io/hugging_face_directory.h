// A model's directory as Hugging Face's libraries write it: config.json, and the tensors in model.safetensors or in the
// shards that model.safetensors.index.json lists. Every file is checked when it is opened; tensors are views of mapped
// files, read from disk when touched.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "plimsoll/io/safetensors.h"

namespace plimsoll::io {

class HuggingFaceDirectory {
 public:
  // Throws Error, one line that names the file, as all members do.
  explicit HuggingFaceDirectory(std::filesystem::path path);
  HuggingFaceDirectory(HuggingFaceDirectory&&) = default;

  const std::filesystem::path& path() const { return path_; }
  const nlohmann::json& config() const { return config_; }  // an object

  bool contains(const std::string& name) const { return entries_.contains(name); }
  at::Tensor tensor(const std::string& name) const;
  std::filesystem::path file_of(const std::string& name) const;   // that has the tensor
  std::function<void()> releaser(const std::string& name) const;  // see SafetensorsFile
  std::vector<std::string> names() const;                         // of all tensors, sorted

  // Names that `is_of_model` accepts are all there, of these shapes, and no others; the error lists names that are
  // missing, of another shape or unknown, five of each at most and the number of the rest.
  using Shapes = std::map<std::string, std::vector<int64_t>>;
  void check_tensors(const Shapes& expected, const std::function<bool(const std::string&)>& is_of_model) const;

 private:
  struct Entry {
    const SafetensorsFile* file = nullptr;
    const SafetensorsEntry* entry = nullptr;
  };
  const Entry& find(const std::string& name) const;
  void open();
  void open_file();
  void open_shards();

  std::filesystem::path path_;
  nlohmann::json config_;
  std::map<std::string, SafetensorsFile> files_;  // by name
  std::map<std::string, Entry> entries_;
};

}  // namespace plimsoll::io
