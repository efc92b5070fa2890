#include "plimsoll/app/checkpoint/inspect.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <string>

#include "plimsoll/app/checkpoint/check_codes.h"
#include "plimsoll/app/checkpoint/fp8_matrix.h"
#include "plimsoll/app/checkpoint/safetensors_in.h"
#include "plimsoll/app/error.h"
#include "plimsoll/io/checkpoint.h"
#include "plimsoll/io/mapping_guard.h"
#include "plimsoll/io/safetensors.h"
#include "plimsoll/models/stored_codes.h"

namespace plimsoll::app {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

std::vector<fs::path> files_of(const fs::path& path, const std::function<void(const std::string&)>& warn) {
  if (!fs::is_directory(path)) return {path};
  std::vector<fs::path> files = safetensors_in(path);
  if (files.empty()) {
    if (const auto latest = io::load_latest_checkpoint(path)) {
      if (warn) std::ranges::for_each(latest->refused, warn);
      files = safetensors_in(latest->directory);
    }
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

json shares_json(const std::optional<FourBitShares>& shares) {
  if (!shares) return nullptr;
  return {{"saturated", shares->saturated}, {"flushed", shares->flushed}, {"flushed_blocks", shares->flushed_blocks}};
}

// Tensors of several files by name; codes and their scales may be in different shards.
class OpenFiles {
 public:
  explicit OpenFiles(const std::vector<fs::path>& paths) {
    // Shards of one model share its names.
    const bool is_model = fs::exists(paths.front().parent_path() / "config.json");
    files_.reserve(paths.size());
    for (const fs::path& path : paths) {
      const io::SafetensorsFile& file = files_.emplace_back(path);
      prefixes_.push_back(paths.size() > 1 && !is_model ? path.stem().native() + "/" : "");
      for (const io::SafetensorsEntry& entry : file.entries()) places_[prefixes_.back() + entry.name] = {&file, &entry};
    }
  }

  std::vector<TensorReport> reports() const {
    std::vector<TensorReport> reports;
    for (size_t i = 0; i < files_.size(); ++i) {
      for (const io::SafetensorsEntry& entry : files_[i].entries()) {
        reports.push_back(report(prefixes_[i] + entry.name, files_[i].tensor(entry)));
        files_[i].releaser(entry)();
      }
      io::check_mapped_files();
    }
    return reports;
  }

 private:
  struct Place {
    const io::SafetensorsFile* file = nullptr;
    const io::SafetensorsEntry* entry = nullptr;
  };

  at::Tensor find(const std::string& name) const {
    const auto found = places_.find(name);
    return found == places_.end() ? at::Tensor() : found->second.file->tensor(*found->second.entry);
  }

  TensorReport report(const std::string& name, const at::Tensor& tensor) const {
    TensorReport report{.name = name,
                        .dtype = std::string(io::safetensors_dtype(tensor.scalar_type())),
                        .shape = tensor.sizes().vec(),
                        .statistics = {}};
    const FindTensor find_beside = [this](const std::string& other) { return find(other); };
    if (const auto packed = packed_matrix(name, tensor, find_beside)) {
      const PackedStatistics statistics = statistics_of(*packed);
      const bool is_nvfp4 = format::is_nvfp4(packed->scaling);
      report.dtype = is_nvfp4 ? "NVFP4" : "MXFP4";
      report.shape = {packed->rows(), packed->cols()};
      report.statistics = statistics.values;
      (is_nvfp4 ? report.nvfp4 : report.mxfp4) = statistics.shares;
      return report;
    }
    if (const auto fp8 = fp8_matrix(name, tensor, find_beside)) {
      report.dtype = "FP8";
      report.statistics = statistics_of(*fp8);
      return report;
    }
    report.statistics = statistics_of(tensor);
    if (models::is_scale_of_codes(name)) return report;
    report.nvfp4 = four_bit_shares(tensor, report.statistics.amax, format::Fp4Scaling::kNvfp4);
    report.mxfp4 = four_bit_shares(tensor, report.statistics.amax, format::Fp4Scaling::kMxfp4);
    return report;
  }

  std::vector<io::SafetensorsFile> files_;
  std::vector<std::string> prefixes_;  // of the names in each
  std::map<std::string, Place> places_;
};

}  // namespace

std::vector<TensorReport> inspect(const fs::path& path, const std::function<void(const std::string&)>& warn) {
  return OpenFiles(files_of(path, warn)).reports();
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
            {"fp16", headroom(statistics, format::Format::kFp16)}}},
          {"four_bits", {{"nvfp4", shares_json(report.nvfp4)}, {"mxfp4", shares_json(report.mxfp4)}}}};
}

}  // namespace plimsoll::app
