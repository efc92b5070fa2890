#include "plimsoll/kernels/norm/norm_rows.inc"

namespace plimsoll::kernels {
extern const NormRows kNormRowsAvx2 = {forward_rows, backward_rows};
}
