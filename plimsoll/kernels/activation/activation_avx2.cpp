#include "plimsoll/kernels/activation/activation_rows.inc"

namespace plimsoll::kernels {
extern const ActivationRows kActivationRowsAvx2 = {forward_rows, backward_rows};
}
