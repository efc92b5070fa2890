#include "plimsoll/app/text/mapped_logits.h"

#include <ATen/ops/from_file.h>

namespace plimsoll::app {

at::Tensor mapped_logits(const std::filesystem::path& file, int64_t tokens, int64_t vocabulary) {
  const at::Tensor memory = at::from_file(file.native(), /*shared=*/true, tokens * vocabulary, at::kFloat);
  std::filesystem::remove(file);
  return memory.view({tokens, vocabulary});
}

}  // namespace plimsoll::app
