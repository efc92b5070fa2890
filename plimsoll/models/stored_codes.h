// Matrices that a Hugging Face directory has as codes.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "plimsoll/io/hugging_face_directory.h"
#include "plimsoll/models/quantization_config.h"

namespace plimsoll::models {

// Shape of the scales of a matrix.
std::vector<int64_t> scale_shape(const CodeLayout& layout, int64_t rows, int64_t cols);

// Whether a tensor of this name holds scales, or the global scale, of codes.
bool is_scale_of_codes(std::string_view name);

// Names are those of weights, "X.weight", as a directory of values has them.
class StoredCodes {
 public:
  // Throws io::Error, as all members do, for a quantization_config that is not supported.
  explicit StoredCodes(const io::HuggingFaceDirectory& directory);

  // Whether config.json has a quantization_config.
  bool any() const { return config_.has_value(); }
  // Error where config.json has codes of which the directory has none.
  void expect_codes() const;
  // Whether the directory has the weight as values, or codes of it.
  bool has(const std::string& name) const;
  // The kind of the codes that it has; none where it has values, or neither.
  std::optional<ops::CodeKind> kind(const std::string& name) const;

  // Shapes, as values, of the matrices that the directory has as codes; by the names of their weights.
  std::map<std::string, std::vector<int64_t>> shapes() const;

  // Adds the tensors that make the weight, [rows, cols] as values: codes, their scales, and scales of activations, which
  // nothing reads.
  void expect(const std::string& name, const std::vector<int64_t>& shape,
              io::HuggingFaceDirectory::Shapes& shapes) const;
  // Views of the mapped file but for scales of E4M3 that are expanded to rows. Each code and scale is read once: NaN is an
  // error, and so is a scale that is Inf or negative.
  ops::CodeSource read(const std::string& name) const;

  // Scales of activations that the directory has, "X.input_scale" or "X.input_global_scale".
  std::vector<std::string> activation_scales() const;

 private:
  const CodeLayout* layout(const std::string& name) const;
  const CodeLayout& chosen(const std::string& name, const std::vector<const CodeLayout*>& layouts) const;
  void check_is_not_ignored(const std::string& name) const;
  at::Tensor scale_of_e4m3(const std::string& name, const CodeLayout& layout, const at::Tensor& codes) const;
  float tensor_scale(const std::string& name) const;
  // "FILE: tensor 'NAME'".
  std::string where(const std::string& name) const;

  const io::HuggingFaceDirectory& directory_;
  std::optional<QuantizationConfig> config_;
};

}  // namespace plimsoll::models
