// Outliers that are put into a model to see what its formats make of them.
#pragma once

#include <cstdint>
#include <filesystem>

#include "plimsoll/models/language_model.h"

namespace plimsoll::app {

// Channel of the values of a layer's attention, which grows by `factor`; what reads it shrinks by as much.
struct Outlier {
  int64_t channel = 0;  // of all heads of values
  int64_t layer = 0;
  double factor = 1;
};

// Multiplies in place. The function stays, with the same bits in FP32 if the factor is a power of two. Throws UsageError for a
// layer or a channel that the model has not.
void put_outlier(models::LanguageModel& model, const Outlier& outlier);

// A Hugging Face directory in FP32 of another one's model with the outlier, in the system's directory of temporary files;
// it goes with the object.
class DirectoryWithOutlier {
 public:
  DirectoryWithOutlier(const std::filesystem::path& source, const Outlier& outlier);
  ~DirectoryWithOutlier();
  DirectoryWithOutlier(const DirectoryWithOutlier&) = delete;
  DirectoryWithOutlier& operator=(const DirectoryWithOutlier&) = delete;

  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

}  // namespace plimsoll::app
