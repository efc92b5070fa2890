// Cross entropy of logits and of a linear head, fused with their gradients. Differentiable once.
#pragma once

#include <ATen/core/TensorBody.h>

#include <string_view>

namespace plimsoll::ops {

enum class Reduction { kNone, kMean, kSum };
Reduction parse_reduction(std::string_view name, const char* op);  // "none", "mean", "sum"
std::string_view name(Reduction reduction);

// As torch.nn.functional.cross_entropy, but the classes are the last dimension.
struct CrossEntropyOptions {
  Reduction reduction = Reduction::kMean;  // kMean: divided by the sum of the targets' weights
  int64_t ignore_index = -100;             // such a target has loss 0, gradient 0 and weight 0
  double label_smoothing = 0;
  at::Tensor weight = {};  // [vocabulary], of each class; not with label smoothing
};

// logits [..., vocabulary] fp32, bf16 or fp16, targets int64 [...] -> fp32 loss, a scalar or [...]. FP32 inside.
//
// With kMean and kSum the gradient is computed together with the loss, in the dtype of the logits, and kept in their
// place until backward multiplies it by the incoming gradient (unless that is 1), a second rounding. FP16 logits are
// kept instead, and their gradient is computed in backward: a loss scale arrives before it is rounded. So are logits on a CUDA device,
// where the host does not know that an incoming gradient is 1.
//
// A target out of the vocabulary is an error on the CPU. On a device nothing is read by the host: such a target makes its row's loss and
// gradient NaN, and so the mean and the sum; with kMean and class weights it has the weight of its first or last class. The
// bits of each row are the CPU's; the sum of the losses and that of class weights are in double in torch's order.
at::Tensor cross_entropy(const at::Tensor& logits, const at::Tensor& targets, const CrossEntropyOptions& options = {});

struct LinearCrossEntropyOptions {
  Reduction reduction = Reduction::kMean;  // kMean, kSum
  int64_t ignore_index = -100;
  double label_smoothing = 0;
};

// cross_entropy(hidden weight^T, targets) with hidden [..., dim] and weight [vocabulary, dim] rounded to `dtype`,
// without ever holding all logits: rows are taken in chunks, whose logits (bf16 for bf16, fp32 otherwise) become their
// gradient in place and then the gradients of hidden and weight.
//
// Gradients, where they are wanted, are computed by the forward pass and kept until backward multiplies them by the
// incoming gradient: that of hidden in the dtype of the logits, that of weight in fp32, summed over the chunks in
// order. A row whose target is ignored is not multiplied at all: only the rows that count make up the chunks. On a CUDA device products are
// torch's, of all rows; targets are as in cross_entropy.
at::Tensor linear_cross_entropy(const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& targets,
                                const LinearCrossEntropyOptions& options, at::ScalarType dtype);

}  // namespace plimsoll::ops
