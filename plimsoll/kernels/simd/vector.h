// A vector of 16 FP32 lanes, the same on every ISA: elementwise kernels are written once over it, compiled once per ISA
// file, and give the same bits everywhere. Whatever the registers are (4 x 4, 2 x 8 or 1 x 16 lanes), sums are 16
// lane-wise chains joined by one tree.
//
// Everything has internal linkage: this header is compiled with different instruction sets in one program, and a shared
// symbol would let the linker pick the AVX-512 body for a machine that has none.
//
// F32x16 and I32x16 are values; Mask16 is the result of a comparison.
//   zero() set(f) set_i(i) load(p) store(p, v) load_n(p, n) store_n(p, v, n)   n in 0..16; lanes past n read as 0
//   keep_n(v, n)                                                               lanes past n become 0
//   load_bf16 load_fp16 load_u8 / store_bf16 store_fp16 store_u8, and _n       16-bit stores round to nearest even
//   store_bf16_32(p, a, b)                                                     store_bf16 of both, cheaper
//   store_upper_32(p, a, b)                                                    the upper halves of 32 words
//   add sub mul div min max sqrt abs                                           min, max: b if either is NaN
//   fma(a, b, c) fnma(a, b, c)                                                 a b + c, c - a b, rounded once
//   bits from_bits to_float to_int round_even                                  to_int: of values from round_even
//   and_i or_i xor_i add_i sub_i min_i max_i shift_left<k> shift_right<k>      shifts logical, min_i and max_i signed
//   less less_equal equal less_i select select_i any all
//   reduce_add reduce_max_i first_lane
#pragma once

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__) && defined(__AVX512VL__)
#include "plimsoll/kernels/simd/vector_avx512.inc"
#elif defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#include "plimsoll/kernels/simd/vector_avx2.inc"
#else
#include "plimsoll/kernels/simd/vector_portable.inc"
#endif
