// The calls that gain by our kernels, by processor: tables of measurements, one line for all that was measured alike.
// bench/accelerated_models.py makes the figures; docs/accelerate.md shows them.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "plimsoll/format/format.h"
#include "plimsoll/runtime/cpu.h"

namespace plimsoll::acceleration {

// The fate of a call.
enum class Outcome : uint8_t {
  kReplaced,
  kDtype,      // not fp32, bf16 or fp16, or several
  kShape,      // sizes or options that our kernel has not
  kStrides,    // a layout that our kernel does not read or write
  kSize,       // no gain at these sizes
  kProcessor,  // no gain on this processor
};
inline constexpr std::array<std::string_view, 6> kOutcomeNames = {"replaced", "dtype", "shape",
                                                                  "strides",  "size",  "processor"};

struct Processor {
  runtime::Isa isa = runtime::Isa::kPortable;  // the level in force for the operator's kernel
  bool is_amd = false;                         // torch multiplies FP32 by MKL, which has only AVX2 there
  bool splits_512_bits = false;                // Zen 4, where that is as fast
};
// isa: of the kernel that would run.
Processor processor(runtime::Isa isa);

// Layouts of [m, k] x [k, n]: what lies one after the other in memory.
enum class Layout : uint8_t {
  kNt = 1,  // k of both, as a layer reads its weight
  kNn = 2,  // k of the first, n of the second, as the gradient of a layer's input
  kTn = 4,  // m of the first, as the gradient of a layer's weight
};

struct ProductCall {
  format::Format format = format::Format::kFp32;
  Layout layout = Layout::kNt;
  bool is_batch = false;
  int64_t m = 0, n = 0, k = 0;  // of one product
};

// A product of FP8 codes with scales of each tensor or each row.
struct ScaledProductCall {
  int64_t m = 0, n = 0, k = 0;
};

struct AttentionCall {
  format::Format format = format::Format::kFp32;
  bool is_causal = false;
  int64_t queries = 0;
};

// Kernels that read each element once.
enum class Pass : uint8_t {
  kGeluTanh,
  kGeluErf,
  kSilu,
  kGeluTanhBackward,
  kGeluErfBackward,
  kSiluBackward,
  kSoftmax,
  kLogSoftmax,
  kLogSoftmaxBackward,
  kLayerNorm,
  kLayerNormBackward,
  kRmsNorm,
  kFusedAdam,
};

struct PassCall {
  Pass pass = Pass::kGeluTanh;
  format::Format format = format::Format::kFp32;
  int64_t elements = 0;
};

// These return kReplaced, kSize or kProcessor; kReplaced alone after set_rules(false), by which kernels are measured where no rule
// is in force yet.
void set_rules(bool in_force);
Outcome choose(const ProductCall& call, const Processor& processor);
Outcome choose(const ScaledProductCall& call, const Processor& processor);
Outcome choose(const AttentionCall& call, const Processor& processor);
Outcome choose(const PassCall& call, const Processor& processor);

}  // namespace plimsoll::acceleration
