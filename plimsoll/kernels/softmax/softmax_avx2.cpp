#include "plimsoll/kernels/softmax/softmax_rows.inc"

namespace plimsoll::kernels {
extern const SoftmaxRows kSoftmaxRowsAvx2 = {forward_rows, backward_rows};
}
