// A Decoder from the tensors of a Hugging Face directory.
#pragma once

#include "plimsoll/io/hugging_face_directory.h"
#include "plimsoll/models/decoder/model.h"
#include "plimsoll/models/load.h"
#include "plimsoll/models/stored_codes.h"

namespace plimsoll::models {

// config.json, and the ids of generation_config.json where there is one. A head that is stored and differs from the
// embedding is not tied, whatever config.json says; where both are stored, both are read once.
DecoderConfig decoder_config(const io::HuggingFaceDirectory& directory);

// The name that the directory has for a tensor of the model: `name`, or one of other_names().
std::string name_there(const StoredCodes& directory, const DecoderConfig& config, const std::string& name);

// Throws io::Error unless the directory has the tensors that `config` describes, as values or as codes, and no others.
void check_decoder_tensors(const io::HuggingFaceDirectory& directory, const StoredCodes& codes,
                           const DecoderConfig& config);

// As load(). kAsStored: the dtype of config.json, else that of the embedding.
Decoder load_decoder(const io::HuggingFaceDirectory& directory, const LoadOptions& options);

}  // namespace plimsoll::models
