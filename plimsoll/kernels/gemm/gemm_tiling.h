// Sizes of a product's blocks, by the design of the processor: they decide its speed, and no bit of its result. `make tune`
// finds those of a new one. Private to this folder.
#pragma once

#include <cstdint>

#include "plimsoll/runtime/processor.h"

namespace plimsoll::kernels {

// Blocks of the products of one microkernel.
struct GemmTiling {
  int64_t k_block = 512;  // longest block of k, a multiple of 64
  int64_t a_kib = 384;    // packed A that is multiplied with each B panel before the next: it stays in L2

  friend constexpr bool operator==(const GemmTiling&, const GemmTiling&) = default;
};

struct GemmTilings {
  GemmTiling fp32 = {.k_block = 512, .a_kib = 384};   // multiply-adds in FP32
  GemmTiling pairs = {.k_block = 512, .a_kib = 192};  // VDPBF16PS
  GemmTiling tiles = {.k_block = 512, .a_kib = 256};  // TDPBF16PS
  GemmTiling split = {.k_block = 512, .a_kib = 512};  // the same of split FP16, whose dwords stand there twice

  friend constexpr bool operator==(const GemmTilings&, const GemmTilings&) = default;
};

// Sizes measured on processors of its design, or the defaults.
GemmTilings tilings_of(const runtime::Processor& processor);

// Sizes in force on the calling thread: of this processor, or of the innermost scope.
const GemmTilings& gemm_tilings();

class ScopedGemmTilings {
 public:
  explicit ScopedGemmTilings(const GemmTilings& tilings);
  ~ScopedGemmTilings();
  ScopedGemmTilings(const ScopedGemmTilings&) = delete;
  ScopedGemmTilings& operator=(const ScopedGemmTilings&) = delete;

 private:
  const GemmTilings tilings_;
  const GemmTilings* const outer_;
};

}  // namespace plimsoll::kernels
