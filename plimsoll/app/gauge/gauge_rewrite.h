// A checkpoint's directory with its tensors multiplied by powers of two.
#pragma once

#include <filesystem>

#include "plimsoll/io/hugging_face_directory.h"
#include "plimsoll/models/freedoms.h"
#include "plimsoll/models/t5/config.h"

namespace plimsoll::app {

struct GaugeRewrite {
  const io::HuggingFaceDirectory& source;
  const models::T5Config& config;  // of the source
  const models::Freedoms& freedoms;
  const models::Exponents& exponents;
};

// Fills a directory: config.json, model.safetensors, and the source's other files that hold no weights and that no command of
// Plimsoll has written about the source. Tensors
// keep their dtype where it holds the product exactly, and are FP32 otherwise. A tied head is stored by itself if the
// embedding is scaled.
void write_gauged(const GaugeRewrite& rewrite, const std::filesystem::path& directory);

}  // namespace plimsoll::app
