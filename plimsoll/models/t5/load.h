// A T5 from a Hugging Face directory.
#pragma once

#include <cstdint>

#include "plimsoll/io/hugging_face_directory.h"
#include "plimsoll/models/overflowed_weights.h"
#include "plimsoll/models/t5/model.h"
#include "plimsoll/models/weight_dtype.h"

namespace plimsoll::models {

// kAsStored: the dtype of shared.weight.
using T5Dtype = WeightDtype;
inline constexpr auto kT5Dtypes = kWeightDtypes;

// Codes of a head, whatever those of the other products: half bytes are too few.
inline constexpr ops::CodeKind kT5HeadCodes = ops::CodeKind::kE4m3Rows;

enum class T5Parts : uint8_t { kAll, kEncoder /* of a checkpoint with a decoder, too */ };

// In eval mode. Weights that are stored in the dtype asked for are views of the mapped file, read when they are first
// used. Under codes the products of the config's plan have BF16 weights. Throws Error, which names all tensors that are
// missing, of another shape or unknown. `warn` hears how many weights, and of which tensors, the dtype cannot hold: they
// are Inf.
T5ForConditionalGeneration load_t5(const io::HuggingFaceDirectory& directory, T5Dtype dtype, const Warn& warn,
                                   T5Parts parts = T5Parts::kAll);

}  // namespace plimsoll::models
