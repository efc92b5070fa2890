// torch.ops.plimsoll.attention*: schemas, CPU and Meta kernels, and calls through the dispatcher.
#pragma once

#include <torch/library.h>

#include <array>
#include <tuple>

#include "plimsoll/ops/attention/attention_pass.h"

namespace plimsoll::ops {

void define_attention(torch::Library& library);
void register_attention_cpu(torch::Library& library);
void register_attention_meta(torch::Library& library);

namespace dispatch {

// {output, lse}.
std::tuple<at::Tensor, at::Tensor> attention_forward(const AttentionOperands& operands, const AttentionRules& rules);

at::Tensor attention_codes_forward(const AttentionOperands& operands, const AttentionRules& rules);

// Gradients of query, key, value and bias; that of the bias is empty unless wanted.
std::array<at::Tensor, 4> attention_backward(const at::Tensor& grad, const AttentionOperands& operands,
                                             const AttentionSaved& saved, const AttentionRules& rules, bool wants_bias);

// The gradients of qkv as one tensor, and of the bias.
std::array<at::Tensor, 2> attention_packed_backward(const at::Tensor& grad, const at::Tensor& qkv,
                                                    const PackedHeads& packed, const AttentionSaved& saved,
                                                    const AttentionRules& rules, bool wants_bias);

}  // namespace dispatch
}  // namespace plimsoll::ops
