// Loops of `count` steps on registers; each returns the operations of one step. Private to this folder.
#pragma once

#include <cstdint>

namespace plimsoll::kernels {

int64_t multiply_add_portable(int64_t count);
int64_t multiply_add_avx2(int64_t count);
int64_t multiply_add_avx512(int64_t count);
int64_t dot_pairs_avx512_bf16(int64_t count);
int64_t multiply_tiles_amx(int64_t count);

}  // namespace plimsoll::kernels
