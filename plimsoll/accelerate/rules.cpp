#include "plimsoll/accelerate/rules.h"

#include <atomic>
#include <limits>

#include "plimsoll/runtime/vector_width.h"

namespace plimsoll::acceleration {
namespace {

using format::Format, runtime::Isa;

constexpr int64_t kAnySize = std::numeric_limits<int64_t>::max();
constexpr uint8_t kNt = static_cast<uint8_t>(Layout::kNt), kNn = static_cast<uint8_t>(Layout::kNn),
                  kTn = static_cast<uint8_t>(Layout::kTn), kAnyLayout = kNt | kNn | kTn;

enum class Kind : uint8_t { kSingle, kBatch };
// kWholeAmd: AMD with units of 512 bits, Zen 5.
enum class Vendor : uint8_t { kAny, kAmd, kWholeAmd };

// Levels that were not measured have no line.
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
    {Isa::kAvx512Bf16, Isa::kAvx512Bf16, Format::kBf16, kNn | kTn, Kind::kSingle, 2, 8, 64, 256, kAnySize,
     Vendor::kWholeAmd},
    {Isa::kAvx512Bf16, Isa::kAvx512Bf16, Format::kBf16, kAnyLayout, Kind::kSingle, 32, 128, 32, 32, 128 * 128 * 128},
    {Isa::kAvx512Bf16, Isa::kAvx512Bf16, Format::kBf16, kTn, Kind::kSingle, 512, kAnySize, 512, 256, kAnySize,
     Vendor::kWholeAmd},
    {Isa::kAvx512, Isa::kAvx512Bf16, Format::kFp32, kAnyLayout, Kind::kSingle, 4, kAnySize, 32, 32, kAnySize,
     Vendor::kWholeAmd},
    {Isa::kAvx512, Isa::kAvx512Bf16, Format::kFp32, kAnyLayout, Kind::kBatch, 32, kAnySize, 32, 32, kAnySize,
     Vendor::kWholeAmd},
    // Tiles are used by both for BF16: a gain as with VDPBF16PS. FP16 is split into two BF16, four products of tiles.
    {Isa::kAmx, Isa::kAmx, Format::kBf16, kAnyLayout, Kind::kSingle, 32, 128, 32, 32, 128 * 128 * 128},
    {Isa::kAmx, Isa::kAmx, Format::kBf16, kTn, Kind::kSingle, 512, kAnySize, 512, 256},
    {Isa::kAmx, Isa::kAmx, Format::kFp16, kAnyLayout, Kind::kSingle, 64, kAnySize, 64, 64},
    {Isa::kAmx, Isa::kAmx, Format::kFp16, kAnyLayout, Kind::kBatch, 128, kAnySize, 64, 64},
};

struct ScaledProductRule {
  Isa from, to;
  int64_t least_work;  // m n k
};

// torch decodes whole matrices without vectors before it multiplies.
constexpr ScaledProductRule kScaledProductRules[] = {{Isa::kAvx2, Isa::kAmx, 4096}};

enum class Mask : uint8_t { kAny, kCausal };

struct AttentionRule {
  Isa from, to;
  Format format;
  Mask mask;
  int64_t least_queries;
  Vendor vendor = Vendor::kAny;
};

// torch reads the half of the scores that a causal rule hides, and multiplies 16 bits in backward without vectors.
constexpr AttentionRule kAttentionRules[] = {
    {Isa::kAvx512, Isa::kAvx512Bf16, Format::kBf16, Mask::kAny, 1},
    {Isa::kAvx2, Isa::kAvx2, Format::kBf16, Mask::kAny, 64},
    {Isa::kAvx2, Isa::kAvx512Bf16, Format::kFp16, Mask::kAny, 32},
    {Isa::kAvx512, Isa::kAvx512Bf16, Format::kFp32, Mask::kAny, 64, Vendor::kAmd},
    {Isa::kAvx2, Isa::kAvx2, Format::kFp32, Mask::kCausal, 128, Vendor::kAmd},
    // BF16 is multiplied on tiles by both, forward at about the same speed.
    {Isa::kAmx, Isa::kAmx, Format::kBf16, Mask::kCausal, 128},
    {Isa::kAmx, Isa::kAmx, Format::kFp16, Mask::kAny, 128},
    {Isa::kAmx, Isa::kAmx, Format::kFp32, Mask::kAny, 128},
};

struct PassRule {
  Pass pass;
  Isa from, to;
  Format format;
  int64_t least_elements;
  Vendor vendor = Vendor::kAny;
};

constexpr PassRule kPassRules[] = {
    {Pass::kGeluTanh, Isa::kAvx2, Isa::kAmx, Format::kBf16, 4096},
    {Pass::kGeluTanh, Isa::kAvx2, Isa::kAmx, Format::kFp16, 4096},
    {Pass::kGeluTanh, Isa::kAvx512, Isa::kAmx, Format::kFp32, 4096},
    {Pass::kGeluTanhBackward, Isa::kAvx2, Isa::kAmx, Format::kBf16, 4096},
    {Pass::kGeluTanhBackward, Isa::kAvx2, Isa::kAmx, Format::kFp16, 4096},
    {Pass::kGeluTanhBackward, Isa::kAvx512, Isa::kAmx, Format::kFp32, 4096},
    {Pass::kGeluErf, Isa::kAvx2, Isa::kAvx512Bf16, Format::kFp16, 65536, Vendor::kAmd},
    {Pass::kGeluErfBackward, Isa::kAvx2, Isa::kAmx, Format::kFp16, 65536},
    {Pass::kGeluErfBackward, Isa::kAvx512, Isa::kAmx, Format::kBf16, 4096},
    {Pass::kGeluErfBackward, Isa::kAvx512, Isa::kAmx, Format::kFp32, 4096},
    {Pass::kSilu, Isa::kAvx2, Isa::kAmx, Format::kBf16, 65536},
    {Pass::kSilu, Isa::kAvx2, Isa::kAmx, Format::kFp16, 65536},
    {Pass::kSilu, Isa::kAvx512, Isa::kAmx, Format::kFp32, 65536},
    {Pass::kSiluBackward, Isa::kAvx2, Isa::kAmx, Format::kBf16, 65536},
    {Pass::kSiluBackward, Isa::kAvx2, Isa::kAmx, Format::kFp16, 65536},
    {Pass::kSiluBackward, Isa::kAvx512, Isa::kAmx, Format::kFp32, 65536},
    {Pass::kSoftmax, Isa::kAvx2, Isa::kAmx, Format::kBf16, 65536},
    {Pass::kSoftmax, Isa::kAvx2, Isa::kAmx, Format::kFp16, 65536},
    {Pass::kSoftmax, Isa::kAvx512, Isa::kAvx512Bf16, Format::kFp32, 65536},
    {Pass::kLogSoftmax, Isa::kAvx2, Isa::kAmx, Format::kBf16, 65536},
    {Pass::kLogSoftmax, Isa::kAvx2, Isa::kAmx, Format::kFp16, 65536},
    {Pass::kLogSoftmax, Isa::kAvx2, Isa::kAmx, Format::kFp32, 65536},
    {Pass::kLogSoftmaxBackward, Isa::kAvx2, Isa::kAmx, Format::kBf16, 65536},
    {Pass::kLogSoftmaxBackward, Isa::kAvx2, Isa::kAmx, Format::kFp16, 65536},
    {Pass::kLogSoftmaxBackward, Isa::kAvx2, Isa::kAvx512Bf16, Format::kFp32, 65536},
    {Pass::kFusedAdam, Isa::kAvx2, Isa::kAmx, Format::kBf16, 4096},
    {Pass::kFusedAdam, Isa::kAvx2, Isa::kAmx, Format::kFp16, 4096},
    {Pass::kRmsNorm, Isa::kAvx2, Isa::kAmx, Format::kBf16, 768},
    {Pass::kRmsNorm, Isa::kAvx2, Isa::kAmx, Format::kFp16, 768},
    {Pass::kRmsNorm, Isa::kAvx2, Isa::kAmx, Format::kFp32, 768},
    {Pass::kLayerNorm, Isa::kAvx2, Isa::kAvx2, Format::kBf16, 131072},
    {Pass::kLayerNorm, Isa::kAvx2, Isa::kAvx2, Format::kFp16, 131072},
    {Pass::kLayerNorm, Isa::kAvx512, Isa::kAmx, Format::kBf16, 65536},
    {Pass::kLayerNorm, Isa::kAvx512, Isa::kAmx, Format::kFp16, 65536},
    {Pass::kLayerNorm, Isa::kAvx512, Isa::kAmx, Format::kFp32, 65536},
    {Pass::kLayerNormBackward, Isa::kAvx2, Isa::kAvx2, Format::kBf16, 131072},
    {Pass::kLayerNormBackward, Isa::kAvx2, Isa::kAvx2, Format::kFp16, 131072},
    {Pass::kLayerNormBackward, Isa::kAvx512, Isa::kAmx, Format::kBf16, 65536},
    {Pass::kLayerNormBackward, Isa::kAvx512, Isa::kAmx, Format::kFp16, 65536},
    {Pass::kLayerNormBackward, Isa::kAvx512, Isa::kAvx512Bf16, Format::kFp32, 65536},
};

template <class Rule, class Call>
bool is_at(const Rule& rule, const Call& call, const Processor& on) {
  return rule.format == call.format && rule.from <= on.isa && on.isa <= rule.to;
}

bool is_from(Vendor vendor, const Processor& on) {
  switch (vendor) {
    case Vendor::kAny:
      return true;
    case Vendor::kAmd:
      return on.is_amd;
    case Vendor::kWholeAmd:
      return on.is_amd && !on.splits_512_bits;
  }
  __builtin_unreachable();
}

bool is_for(const ProductRule& rule, const ProductCall& call, const Processor& on) {
  return is_at(rule, call, on) && is_from(rule.vendor, on);
}
bool is_for(const ScaledProductRule& rule, const ScaledProductCall&, const Processor& on) {
  return rule.from <= on.isa && on.isa <= rule.to;
}
bool is_for(const AttentionRule& rule, const AttentionCall& call, const Processor& on) {
  return is_at(rule, call, on) && is_from(rule.vendor, on);
}
bool is_for(const PassRule& rule, const PassCall& call, const Processor& on) {
  return is_at(rule, call, on) && is_from(rule.vendor, on) && rule.pass == call.pass;
}

bool holds(const ProductRule& rule, const ProductCall& call) {
  return (rule.kind == Kind::kBatch) == call.is_batch && (rule.layouts & static_cast<uint8_t>(call.layout)) != 0 &&
         rule.least_m <= call.m && call.m <= rule.most_m && rule.least_n <= call.n && rule.least_k <= call.k &&
         call.m * call.n * call.k <= rule.most_work;
}

bool holds(const ScaledProductRule& rule, const ScaledProductCall& call) {
  return call.m * call.n * call.k >= rule.least_work;
}

bool holds(const AttentionRule& rule, const AttentionCall& call) {
  return (rule.mask == Mask::kAny || call.is_causal) && call.queries >= rule.least_queries;
}

bool holds(const PassRule& rule, const PassCall& call) { return call.elements >= rule.least_elements; }

std::atomic<bool> rules_in_force = true;

template <class Rules, class Call>
Outcome choose_among(const Rules& rules, const Call& call, const Processor& on) {
  if (!rules_in_force.load(std::memory_order_relaxed)) return Outcome::kReplaced;
  Outcome outcome = Outcome::kProcessor;
  for (const auto& rule : rules) {
    if (!is_for(rule, call, on)) continue;
    if (holds(rule, call)) return Outcome::kReplaced;
    outcome = Outcome::kSize;
  }
  return outcome;
}

}  // namespace

Processor processor(Isa isa) {
  static const bool is_amd = runtime::cpu_name().starts_with("AMD");
  static const bool splits_512_bits = runtime::splits_512_bits();
  return {isa, is_amd, splits_512_bits};
}

void set_rules(bool in_force) { rules_in_force.store(in_force, std::memory_order_relaxed); }

Outcome choose(const ProductCall& call, const Processor& on) { return choose_among(kProductRules, call, on); }
Outcome choose(const ScaledProductCall& call, const Processor& on) {
  return choose_among(kScaledProductRules, call, on);
}
Outcome choose(const AttentionCall& call, const Processor& on) { return choose_among(kAttentionRules, call, on); }
Outcome choose(const PassCall& call, const Processor& on) { return choose_among(kPassRules, call, on); }

}  // namespace plimsoll::acceleration
