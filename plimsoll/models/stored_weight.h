// A weight of a Hugging Face directory.
#pragma once

#include <string>

#include "plimsoll/io/hugging_face_directory.h"

namespace plimsoll::models {

// A view of the mapped file. Throws io::Error unless it is F32, BF16 or F16.
at::Tensor stored_weight(const io::HuggingFaceDirectory& directory, const std::string& name);

// Whether the directory has a head that is no copy of the embedding. transformers ties no such head, whatever config.json
// says, and neither do we.
bool has_own_head(const io::HuggingFaceDirectory& directory, const std::string& head, const std::string& embedding);

// Throws io::Error for more layers than there are tensors: config.json names a model of any size, and what it describes
// is listed before the files are compared with it.
void check_layers(const io::HuggingFaceDirectory& directory, const std::string& member, int64_t layers);

}  // namespace plimsoll::models
