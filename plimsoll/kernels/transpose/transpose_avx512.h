#pragma once

#include "plimsoll/kernels/transpose/transpose.h"

namespace plimsoll::kernels {

// One tile, whose whole lines of output go to memory past the caches: nothing of them is read before. Elements that
// make no whole line are left out: the last rows % (64 / size) rows and cols % (16 / size) columns. output and
// output_stride are multiples of a line.
void stream_bytes_avx512(const Transpose& tile);
void stream_halves_avx512(const Transpose& tile);
void stream_words_avx512(const Transpose& tile);

}  // namespace plimsoll::kernels
