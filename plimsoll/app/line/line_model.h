// A kind of model as `plimsoll line` sees it: samples of the user's data, and the model on them in one dtype after another.
#pragma once

#include <ATen/core/TensorBody.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "plimsoll/models/freedoms.h"
#include "plimsoll/models/weight_dtype.h"

namespace plimsoll::app {

// Weight of a product, by the name that a plan has for it.
struct LineWeight {
  std::string name;
  int64_t elements = 0;
};
// Weights that multiply the same input, and have codes all together.
using LineProduct = std::vector<LineWeight>;

// Logits of a sample, fp32 [its tokens, vocabulary].
using UseLogits = std::function<void(size_t sample, const at::Tensor& logits)>;

class LineModel {
 public:
  virtual ~LineModel() = default;

  // The logits of these samples, one after another in this order.
  virtual void run(const std::vector<size_t>& samples, const UseLogits& use) = 0;
  virtual double bytes_per_weight() = 0;

  // For FP32: as run(), and the largest values are kept.
  virtual void observe(const std::vector<size_t>& samples, const UseLogits& use) = 0;
  virtual models::Amaxes amaxes() const = 0;             // of what was observed
  virtual models::Amaxes worst_case_amaxes() const = 0;  // of any input

  // All that may have codes, in the model's order.
  virtual const std::vector<LineProduct>& products() const = 0;
  // From here on the products that are not wide have codes of their weights, which stay, and the wide ones have none.
  // codes: the same in each call.
  virtual void hold_codes(models::WeightDtype codes, const std::vector<bool>& wide) = 0;
};

// A directory, its samples, and the ways in which it is loaded and written.
class LineSubject {
 public:
  virtual ~LineSubject() = default;

  // The model in FP32. The first call reads the samples, of which there are two or more, and says that it measures once
  // they serve. Throws UsageError, Error or io::Error.
  virtual std::unique_ptr<LineModel> load_exact() = 0;
  // Tokens of each sample, int64: what comes after each that the model has read.
  virtual const std::vector<at::Tensor>& targets() const = 0;
  virtual int64_t vocabulary() const = 0;
  // Samples that show what a product alone costs.
  virtual size_t samples_of_a_product() const = 0;

  struct Written {
    std::filesystem::path directory;
    bool is_gauged = false;
  };
  virtual std::unique_ptr<LineModel> load(const Written& from, models::WeightDtype dtype) const = 0;
  // Lines of a *.jsonl that `plimsoll gauge --calibrate` reads.
  virtual std::string calibration(const std::vector<size_t>& samples) const = 0;
  // Fills a directory with the model as it is.
  virtual void copy(const std::filesystem::path& directory) const = 0;
};

}  // namespace plimsoll::app
