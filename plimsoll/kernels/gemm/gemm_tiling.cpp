#include "plimsoll/kernels/gemm/gemm_tiling.h"

namespace plimsoll::kernels {
namespace {

using runtime::Processor;

struct Row {
  Processor first, last;  // of one family, with all models between them
  GemmTilings tilings;
};

// A row a design, as `make tune` prints it; what each gained stands in docs/results.
constexpr Row kRows[] = {
    // Sapphire and Emerald Rapids: measured on the latter.
    {{Processor::Vendor::kIntel, 6, 143},
     {Processor::Vendor::kIntel, 6, 207},
     {.fp32 = {1536, 384}, .tiles = {768, 256}, .split = {256, 512}}},
    // EPYC of Zen 4 (Genoa): measured on model 17.
    {{Processor::Vendor::kAmd, 25, 16}, {Processor::Vendor::kAmd, 25, 31}, {.fp32 = {2048, 384}, .pairs = {2048, 192}}},
};

constinit thread_local const GemmTilings* scope = nullptr;

}  // namespace

GemmTilings tilings_of(const Processor& processor) {
  for (const Row& row : kRows) {
    const bool same_family = processor.vendor == row.first.vendor && processor.family == row.first.family;
    if (same_family && row.first.model <= processor.model && processor.model <= row.last.model) return row.tilings;
  }
  return {};
}

const GemmTilings& gemm_tilings() {
  static const GemmTilings here = tilings_of(runtime::processor());
  return scope == nullptr ? here : *scope;
}

ScopedGemmTilings::ScopedGemmTilings(const GemmTilings& tilings) : tilings_(tilings), outer_(scope) {
  scope = &tilings_;
}
ScopedGemmTilings::~ScopedGemmTilings() { scope = outer_; }

}  // namespace plimsoll::kernels
