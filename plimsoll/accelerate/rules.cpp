#include "plimsoll/accelerate/rules.h"

#include <limits>

namespace plimsoll::acceleration {
namespace {

using format::Format, runtime::Isa;

constexpr int64_t kAnySize = std::numeric_limits<int64_t>::max();
constexpr uint8_t kNt = static_cast<uint8_t>(Layout::kNt), kNn = static_cast<uint8_t>(Layout::kNn),
                  kTn = static_cast<uint8_t>(Layout::kTn), kAnyLayout = kNt | kNn | kTn;

enum class Kind : uint8_t { kSingle, kBatch };
enum class Vendor : uint8_t { kAny, kAmd };

// Levels that were not measured have no line: with AMX torch multiplies by tiles, too.
struct ProductRule {
  Isa from, to;
  Format format;
  uint8_t layouts;
  Kind kind;
  int64_t least_m, most_m, least_n, least_k;
  int64_t most_work = kAnySize;  // m n k
  Vendor vendor = Vendor::kAny;
};

constexpr ProductRule kProductRules[] = {
    // torch has no vector code for 16 bits but one for NT, which takes a dot product for each result.
    {Isa::kAvx2, Isa::kAvx2, Format::kBf16, kNt, Kind::kSingle, 2, kAnySize, 16, 1},
    {Isa::kAvx2, Isa::kAvx2, Format::kBf16, kNn, Kind::kSingle, 1, kAnySize, 8, 1},
    {Isa::kAvx2, Isa::kAvx2, Format::kBf16, kTn, Kind::kSingle, 8, kAnySize, 8, 8},
    {Isa::kAvx2, Isa::kAvx2, Format::kBf16, kAnyLayout, Kind::kBatch, 16, kAnySize, 8, 8},
    {Isa::kAvx2, Isa::kAvx512Bf16, Format::kFp16, kNt, Kind::kSingle, 4, kAnySize, 8, 1},
    {Isa::kAvx2, Isa::kAvx512Bf16, Format::kFp16, kNn | kTn, Kind::kSingle, 1, kAnySize, 8, 1},
    {Isa::kAvx2, Isa::kAvx512Bf16, Format::kFp16, kAnyLayout, Kind::kBatch, 16, kAnySize, 8, 8},
    {Isa::kAvx512, Isa::kAvx512Bf16, Format::kFp16, kAnyLayout, Kind::kBatch, 1, 15, 64, 64},
    // oneDNN widens BF16 where the processor does not multiply it.
    {Isa::kAvx512, Isa::kAvx512, Format::kBf16, kAnyLayout, Kind::kSingle, 2, kAnySize, 16, 8},
    {Isa::kAvx512, Isa::kAvx512, Format::kBf16, kAnyLayout, Kind::kBatch, 32, kAnySize, 32, 32},
    // VDPBF16PS is used by both: a gain where oneDNN's preparation counts, and where operands are transposed.
    {Isa::kAvx512Bf16, Isa::kAvx512Bf16, Format::kBf16, kNt, Kind::kSingle, 1, 8, 64, 256},
    {Isa::kAvx512Bf16, Isa::kAvx512Bf16, Format::kBf16, kNn | kTn, Kind::kSingle, 2, 8, 64, 256},
    {Isa::kAvx512Bf16, Isa::kAvx512Bf16, Format::kBf16, kAnyLayout, Kind::kSingle, 32, 128, 32, 32, 128 * 128 * 128},
    {Isa::kAvx512Bf16, Isa::kAvx512Bf16, Format::kBf16, kTn, Kind::kSingle, 512, kAnySize, 512, 256},
    {Isa::kAvx512, Isa::kAvx512Bf16, Format::kFp32, kAnyLayout, Kind::kSingle, 4, kAnySize, 32, 32, kAnySize,
     Vendor::kAmd},
    {Isa::kAvx512, Isa::kAvx512Bf16, Format::kFp32, kAnyLayout, Kind::kBatch, 32, kAnySize, 32, 32, kAnySize,
     Vendor::kAmd},
};

bool is_for(const ProductRule& rule, const ProductCall& call, const Processor& on) {
  return rule.format == call.format && rule.from <= on.isa && on.isa <= rule.to &&
         (rule.vendor == Vendor::kAny || on.is_amd);
}

bool holds(const ProductRule& rule, const ProductCall& call) {
  return (rule.kind == Kind::kBatch) == call.is_batch && (rule.layouts & static_cast<uint8_t>(call.layout)) != 0 &&
         rule.least_m <= call.m && call.m <= rule.most_m && rule.least_n <= call.n && rule.least_k <= call.k &&
         call.m * call.n * call.k <= rule.most_work;
}

}  // namespace

Processor processor(Isa isa) {
  static const bool is_amd = runtime::cpu_name().starts_with("AMD");
  return {isa, is_amd};
}

Outcome choose(const ProductCall& call, const Processor& on) {
  Outcome outcome = Outcome::kProcessor;
  for (const ProductRule& rule : kProductRules) {
    if (!is_for(rule, call, on)) continue;
    if (holds(rule, call)) return Outcome::kReplaced;
    outcome = Outcome::kSize;
  }
  return outcome;
}

}  // namespace plimsoll::acceleration
