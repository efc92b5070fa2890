#include "plimsoll/kernels/cross_entropy/cross_entropy_rows.inc"

namespace plimsoll::kernels {
extern const CrossEntropyRows kCrossEntropyRowsAvx2 = run_rows;
}
