// Inputs that the products of a decoder meet on a text, block by block: `plimsoll quantize --calibrate`.
#pragma once

#include <ATen/core/TensorBody.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "plimsoll/models/decoder/model.h"
#include "plimsoll/nn/transformer_layer.h"

namespace plimsoll::app {

// Tokens that a text needs: a window, of 512 or as many as the model sees (`context`), and one more.
int64_t fewest_calibration_tokens(int64_t context);

struct ProductInputsOptions {
  std::filesystem::path model;  // a Hugging Face directory of values, with its tokenizer
  std::filesystem::path data;   // a text of fewest_calibration_tokens() or more
  int64_t tokens = 0;           // of the text, from its beginning, at most; as many or more
};

// A model in FP32 that reads the text in windows of 512 tokens, or as many as it sees, each from nothing. Bits do not depend on the
// number of threads.
class ProductInputs {
 public:
  // Throws UsageError, Error or io::Error.
  explicit ProductInputs(const ProductInputsOptions& options);

  // Whether the model has such a parameter, which a tied head is not.
  bool has(const std::string& parameter) const;
  // The model has these values from here on, which it keeps. values: fp32, of the parameter's shape.
  void replace(const std::string& parameter, const at::Tensor& values);

  // The streams become those of the text's tokens, which the first block reads.
  void start();
  // By the names of the weights that a block's products have, each under "blocks.N.": ops::input_squares() of all tokens. The blocks
  // before it have been run. Throws Error where inputs are not finite.
  std::map<std::string, at::Tensor> squares_of(size_t block);
  // The streams become what the block gives, which the next one reads.
  void run(size_t block);

 private:
  const ProductInputsOptions options_;
  std::shared_ptr<models::DecoderImpl> model_;
  std::map<std::string, std::string> weights_;  // parameters by the names of products
  std::vector<at::Tensor> windows_;             // tokens, int64 [1, seq]
  std::vector<nn::ResidualStream> streams_;     // of each window, before the next block
};

}  // namespace plimsoll::app
