// config.json of a T5.
#pragma once

#include <string_view>

#include "plimsoll/io/hugging_face_directory.h"
#include "plimsoll/models/t5/config.h"

namespace plimsoll::models {

// Whether a config's model_type is of a T5, mT5 or UMT5.
bool is_t5_type(std::string_view model_type);

// Whether there is a decoder and whether its head is tied is read from the tensors, where there is a head; see
// docs/t5.md. Throws Error that names the member of config.json.
T5Config t5_config(const io::HuggingFaceDirectory& directory);

}  // namespace plimsoll::models
