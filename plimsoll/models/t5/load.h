// A T5 from a Hugging Face directory.
#pragma once

#include <array>
#include <cstdint>

#include "plimsoll/io/hugging_face_directory.h"
#include "plimsoll/models/t5/model.h"
#include "plimsoll/models/t5/overflowed_weights.h"
#include "plimsoll/recipe/named.h"

namespace plimsoll::models {

// Dtype that the weights are held in, and the dtype of the computation in between.
enum class T5Dtype : uint8_t {
  kAsStored,  // the dtype of shared.weight
  kFp32,
  kBf16,
  kFp16,
  kFp8,  // E4M3 codes with a scale a row, for inference; bf16 in between
};
inline constexpr std::array<recipe::Named<T5Dtype>, 5> kT5Dtypes = {{{"stored", T5Dtype::kAsStored},
                                                                     {"fp32", T5Dtype::kFp32},
                                                                     {"bf16", T5Dtype::kBf16},
                                                                     {"fp16", T5Dtype::kFp16},
                                                                     {"fp8", T5Dtype::kFp8}}};

enum class T5Parts : uint8_t { kAll, kEncoder /* of a checkpoint with a decoder, too */ };

// In eval mode. Weights that are stored in the dtype asked for are views of the mapped file, read when they are first
// used. Throws Error, which names all tensors that are missing, of another shape or unknown. `warn` hears how many
// weights, and of which tensors, the dtype cannot hold: they are Inf.
T5ForConditionalGeneration load_t5(const io::HuggingFaceDirectory& directory, T5Dtype dtype, const Warn& warn,
                                   T5Parts parts = T5Parts::kAll);

}  // namespace plimsoll::models
