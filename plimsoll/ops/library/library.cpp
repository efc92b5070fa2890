// The operators as torch knows them: torch.ops.plimsoll.*. Formats are "fp32", "bf16", "fp16", "e4m3", "e5m2"; codes
// are uint8; blocks are [rows, cols] of the tensor as stored, 0 for the whole extent; a scale is fp32, or uint8
// exponents (E8M0), and dequantizes.
#include <torch/library.h>

#include "plimsoll/ops/activation/activation_op.h"
#include "plimsoll/ops/attention/attention_op.h"
#include "plimsoll/ops/dispatcher/find_operator.h"
#include "plimsoll/ops/embedding/embedding_op.h"
#include "plimsoll/ops/linear/linear_op.h"
#include "plimsoll/ops/loss/cross_entropy_op.h"
#include "plimsoll/ops/norm/norm_op.h"
#include "plimsoll/ops/rotary/rotary_op.h"
#include "plimsoll/ops/softmax/softmax_op.h"
#include "plimsoll/ops/tensor/tensor_op.h"

namespace plimsoll::ops {
namespace {

// One row for each file of schemas and kernels.
struct Operators {
  void (*define)(torch::Library& library);
  void (*register_cpu)(torch::Library& library);   // nullptr: made of other operators
  void (*register_cuda)(torch::Library& library);  // nullptr, too; or there are none for CUDA devices
  void (*register_meta)(torch::Library& library);  // nullptr: made of other operators
};
constexpr Operators kOperators[] = {
    {define_tensor, register_tensor, register_tensor, register_tensor_meta},
    {define_linear, nullptr, nullptr, nullptr},
    {define_norm, register_norm, register_norm, register_norm_meta},
    {define_activation, register_activation, register_activation, register_activation_meta},
    {define_softmax, register_softmax, register_softmax, register_softmax_meta},
    {define_attention, register_attention_cpu, nullptr, register_attention_meta},
    {define_embedding, register_embedding, register_embedding, register_embedding_meta},
    {define_loss, register_loss, register_loss, register_loss_meta},
    {define_rotary, register_rotary, register_rotary, register_rotary_meta},
};

}  // namespace

TORCH_LIBRARY(plimsoll, library) {
  for (const Operators& operators : kOperators) operators.define(library);
}

TORCH_LIBRARY_IMPL(plimsoll, CPU, library) {
  for (const Operators& operators : kOperators) {
    if (operators.register_cpu != nullptr) operators.register_cpu(library);
  }
}

TORCH_LIBRARY_IMPL(plimsoll, CUDA, library) {
  for (const Operators& operators : kOperators) {
    if (operators.register_cuda != nullptr) operators.register_cuda(library);
  }
}

TORCH_LIBRARY_IMPL(plimsoll, Meta, library) {
  for (const Operators& operators : kOperators) {
    if (operators.register_meta != nullptr) operators.register_meta(library);
  }
}

c10::OperatorHandle find_operator(const char* name) { return c10::Dispatcher::singleton().findSchemaOrThrow(name, ""); }

}  // namespace plimsoll::ops
