// The parameters of a decoder by name, without the decoder, and the tensors of Hugging Face's files that they are made
// of.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "plimsoll/models/decoder/config.h"
#include "plimsoll/models/tensors.h"

namespace plimsoll::models {

// Layout in a file of what the model has as rows.
enum class StoredOrder : uint8_t {
  kRows,
  kTransposed,   // GPT-2's Conv1D: [in, out]
  kHeadsInTurn,  // GPT-NeoX: [heads, 3, head_dim] by rows; the model has the heads of queries, of keys, of values
};

struct StoredPart {
  std::string name;
  std::vector<int64_t> shape;  // in the file
  int64_t rows;                // of the parameter
};

// A parameter of the model: the rows of its parts, one after another.
struct DecoderTensor {
  std::string parameter;
  std::vector<int64_t> shape;
  std::vector<StoredPart> parts = {};
  StoredOrder order = StoredOrder::kRows;
};

// Every parameter of Decoder(config). As many entries as the model has parameters: bound config.layers first.
std::vector<DecoderTensor> decoder_tensors(const DecoderConfig& config);
ParameterShapes decoder_parameter_shapes(const DecoderConfig& config);

// Names under which other versions have stored a tensor: without its root, or as another head.
std::vector<std::string> other_names(const DecoderConfig& config, const std::string& name);
// The name of the head's module, which the files of a tied one lack, and of the embedding's.
std::string head_module(const DecoderConfig& config);
std::string embedding_module(const DecoderConfig& config);
// Buffers of older files, and the copy of an embedding that a tied head is.
bool is_ignored(const DecoderConfig& config, const std::string& name);

// The rows of a parameter that a part holds, and back. Views where the order is that of rows.
at::Tensor rows_of(const at::Tensor& stored, StoredOrder order, const DecoderConfig& config);
at::Tensor stored_of(const at::Tensor& rows, StoredOrder order, const DecoderConfig& config);

// Parts that a file has of `tensor`, the values or the gradient of a parameter, by their names.
std::map<std::string, at::Tensor> stored_parts(const DecoderTensor& parameter, const DecoderConfig& config,
                                               const at::Tensor& tensor);

}  // namespace plimsoll::models
