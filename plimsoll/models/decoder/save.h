// A Decoder as a Hugging Face directory.
#pragma once

#include "plimsoll/models/decoder/model.h"
#include "plimsoll/models/load.h"

namespace plimsoll::models {

void save_decoder(const DecoderImpl& model, const std::filesystem::path& directory, const SaveOptions& options);

}  // namespace plimsoll::models
