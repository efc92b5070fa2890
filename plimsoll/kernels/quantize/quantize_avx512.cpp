#define PLIMSOLL_QUANTIZE_TILE kQuantizeTileAvx512
#include "plimsoll/kernels/quantize/quantize_tile.inc"
