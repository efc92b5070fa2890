// A card in the interpreter's place: the same tests, with the machine code that nvcc made.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "plimsoll/kernels/cuda/launch.h"
#include "tests/ptx/memory.h"

namespace plimsoll::ptx {

class Card {
 public:
  // The first card, where the environment variable PLIMSOLL_CARD is 1; else nullptr. Throws where there is none then.
  static Card* in_use();

  // Runs the kernel on copies of the buffers and brings back what it wrote. Arguments that are addresses in `memory` become those of
  // the copies. Fault: a byte beside a buffer that changed, or one of a buffer that is read only.
  void run(const std::string& kernel, Memory& memory, kernels::Launch shape, std::vector<uint8_t> arguments);

 private:
  Card();
  void* find(const std::string& kernel) const;

  std::vector<void*> libraries_;
};

}  // namespace plimsoll::ptx
