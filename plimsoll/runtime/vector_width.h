// The width of the units behind AVX-512.
#pragma once

namespace plimsoll::runtime {

// Whether operations of 512 bits take two passes through units of 256, as on AMD Zen 4: FP32 is then multiplied no faster than
// by AVX2. Source: AMD, Software Optimization Guide for the AMD Zen4 Microarchitecture, publication 57647.
bool splits_512_bits();

}  // namespace plimsoll::runtime
