// Logits of a text in the memory of a file, which the system can write back when it needs the room.
#pragma once

#include <ATen/core/TensorBody.h>

#include <cstdint>
#include <filesystem>

namespace plimsoll::app {

// fp32 [tokens, vocabulary], not set. The file is made anew and has no name after that. Whoever writes or reads them calls
// io::check_mapped_files() then: a disk may be full. Throws c10::Error where the file cannot be made.
at::Tensor mapped_logits(const std::filesystem::path& file, int64_t tokens, int64_t vocabulary);

}  // namespace plimsoll::app
