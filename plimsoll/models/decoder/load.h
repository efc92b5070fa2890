// A Decoder from the tensors of a Hugging Face directory.
#pragma once

#include "plimsoll/io/hugging_face_directory.h"
#include "plimsoll/models/decoder/model.h"
#include "plimsoll/models/load.h"

namespace plimsoll::models {

// config.json, and the ids of generation_config.json where there is one.
DecoderConfig decoder_config(const io::HuggingFaceDirectory& directory);

// As load(). kAsStored: the dtype of config.json, else that of the embedding.
Decoder load_decoder(const io::HuggingFaceDirectory& directory, const LoadOptions& options);

}  // namespace plimsoll::models
