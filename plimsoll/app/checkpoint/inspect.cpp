#include "plimsoll/app/checkpoint/inspect.h"

#include <algorithm>
#include <cmath>

#include "plimsoll/app/checkpoint/safetensors_in.h"
#include "plimsoll/app/error.h"
#include "plimsoll/io/checkpoint.h"
#include "plimsoll/io/mapping_guard.h"
#include "plimsoll/io/safetensors.h"

namespace plimsoll::app {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

std::vector<fs::path> files_of(const fs::path& path) {
  if (!fs::is_directory(path)) return {path};
  std::vector<fs::path> files = safetensors_in(path);
  if (files.empty()) {
    if (const auto latest = io::load_latest_checkpoint(path)) files = safetensors_in(latest->directory);
  }
  if (files.empty()) fail("{}: expected safetensors files or checkpoints in the directory, got none", path.native());
  return files;
}

double share(int64_t part, int64_t whole) {
  return whole > 0 ? static_cast<double>(part) / static_cast<double>(whole) : 0;
}

json headroom(const TensorStatistics& statistics, format::Format format) {
  const auto bits = statistics.headroom_bits(format);
  return bits ? json(*bits) : json(nullptr);
}

}  // namespace

std::vector<TensorReport> inspect(const fs::path& path) {
  std::vector<TensorReport> reports;
  const std::vector<fs::path> files = files_of(path);
  // Shards of one model share its names.
  const bool is_model = fs::exists(files.front().parent_path() / "config.json");
  for (const fs::path& name : files) {
    const io::SafetensorsFile file(name);
    const std::string prefix = files.size() > 1 && !is_model ? name.stem().native() + "/" : "";
    for (const io::SafetensorsEntry& entry : file.entries()) {
      reports.push_back({.name = prefix + entry.name,
                         .dtype = std::string(io::safetensors_dtype(entry.dtype)),
                         .shape = entry.shape,
                         .statistics = statistics_of(file.tensor(entry))});
    }
    io::check_mapped_files();
  }
  return reports;
}

json to_json(const TensorReport& report) {
  const TensorStatistics& statistics = report.statistics;
  const json amax =
      std::isfinite(statistics.amax) ? json(statistics.amax) : json(std::isnan(statistics.amax) ? "nan" : "inf");
  return {{"name", report.name},
          {"dtype", report.dtype},
          {"shape", report.shape},
          {"amax", amax},
          {"rms", statistics.rms},
          {"zeros", share(statistics.zeros, statistics.count)},
          {"non_finite", share(statistics.non_finite, statistics.count)},
          {"headroom_bits",
           {{"e4m3", headroom(statistics, format::Format::kE4m3)},
            {"e5m2", headroom(statistics, format::Format::kE5m2)},
            {"fp16", headroom(statistics, format::Format::kFp16)}}}};
}

}  // namespace plimsoll::app
