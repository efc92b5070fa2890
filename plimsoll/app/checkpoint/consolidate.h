// `plimsoll consolidate` as a function: one file of a checkpoint that several processes saved.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>

namespace plimsoll::app {

struct ConsolidateOptions {
  std::filesystem::path checkpoint;                   // of a step; of a run: its newest good one
  std::filesystem::path out;                          // is made, a safetensors file
  std::string section = "model";                      // "optimizer", "random"
  std::function<void(const std::string&)> warn = {};  // one line for each newer checkpoint of a run that is damaged
};

struct Consolidated {
  std::filesystem::path checkpoint;
  int64_t world_size = 0;  // processes that saved it
  int64_t tensors = 0, bytes = 0;
};

// Writes one section as one file, each tensor whole, however many processes saved it. Throws UsageError
// where `out` exists, Error or io::Error; then there is no file.
Consolidated consolidate(const ConsolidateOptions& options);

}  // namespace plimsoll::app
