#define PLIMSOLL_QUANTIZE_TILE kQuantizeTileAvx2
#include "plimsoll/kernels/quantize/quantize_tile.inc"
