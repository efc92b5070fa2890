// Tensors of the model that `plimsoll quantize` writes, as values: a Hugging Face directory's, or those of its rotated model.
#pragma once

#include <ATen/core/TensorBody.h>

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "plimsoll/io/hugging_face_directory.h"
#include "plimsoll/models/decoder/config.h"
#include "plimsoll/models/decoder/rotation.h"
#include "plimsoll/models/decoder/tensors.h"
#include "plimsoll/models/stored_codes.h"
#include "plimsoll/ops/linear/code_source.h"

namespace plimsoll::app {

class QuantizeSource {
 public:
  // rotates: the residual stream (models/decoder/rotation.h). Throws UsageError, Error or io::Error.
  QuantizeSource(const std::filesystem::path& model, bool rotates);

  const io::HuggingFaceDirectory& directory() const { return directory_; }
  // The directory's, though a rotated model has a head of its own.
  const models::DecoderConfig& config() const { return config_; }
  bool is_rotated() const { return rotation_.has_value(); }
  // Parameters of the model that is written.
  const std::vector<models::DecoderTensor>& tensors() const { return tensors_; }

  // Whether the directory has no such tensor, since its head is the embedding.
  bool is_new_head(const models::StoredPart& part) const;
  // The name that the directory has for it; of a new head, the embedding's.
  std::string there(const models::StoredPart& part) const;
  // As the directory has it.
  at::Tensor stored(const models::StoredPart& part) const;
  // As the model that is written has it. Throws Error where a weight that is rotated is NaN or Inf.
  ops::CodeSource read(const models::DecoderTensor& tensor, const models::StoredPart& part) const;
  // fp32, of the parameter's shape, as the model that is written has it; finite, or throws Error.
  at::Tensor parameter(const models::DecoderTensor& tensor) const;

  // Throws Error unless the weight, of any shape, is finite; name: in the directory.
  void expect_finite(const std::string& name, const at::Tensor& weight) const;
  // The same of its largest magnitude.
  void expect_finite(const std::string& name, float amax) const;

 private:
  const io::HuggingFaceDirectory directory_;
  const models::DecoderConfig config_;
  const models::StoredCodes codes_;
  std::optional<models::ResidualRotation> rotation_;
  std::vector<models::DecoderTensor> tensors_;
};

// A weight as a matrix: a vector is one row.
at::Tensor as_rows(const at::Tensor& weight);

}  // namespace plimsoll::app
