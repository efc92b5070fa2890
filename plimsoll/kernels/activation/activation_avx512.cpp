#include "plimsoll/kernels/activation/activation_rows.inc"

namespace plimsoll::kernels {
extern const ActivationRows kActivationRowsAvx512 = {forward_rows, backward_rows};
}
