#pragma once

#include "plimsoll/kernels/transpose/transpose.h"

namespace plimsoll::kernels {

// One tile, as the portable one. Serves AVX-512 too where the output stays in the caches: the shuffles of 32 bytes
// already keep up with the stores.
void transpose_bytes_avx2(const Transpose& tile, int64_t next_rows);
void transpose_halves_avx2(const Transpose& tile, int64_t next_rows);
void transpose_words_avx2(const Transpose& tile, int64_t next_rows);

// As those of AVX-512 (transpose_avx512.h).
void stream_bytes_avx2(const Transpose& tile);
void stream_halves_avx2(const Transpose& tile);
void stream_words_avx2(const Transpose& tile);

}  // namespace plimsoll::kernels
