#include "plimsoll/runtime/cpu.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "plimsoll/runtime/cpuid.h"
#include "plimsoll/runtime/detection.h"
#include "plimsoll/runtime/isa_scope.h"

namespace plimsoll::runtime {
namespace {

constexpr std::array<std::string_view, 5> kNames = {"portable", "avx2", "avx512", "avx512_bf16", "amx"};
static_assert(kNames.size() == static_cast<size_t>(Isa::kAmx) + 1, "an instruction set has no name");

// -1 when the variable is absent.
int environment_level() {
  const char* text = std::getenv("PLIMSOLL_ISA");
  if (text == nullptr || *text == '\0') return -1;
  const std::optional<Isa> level = parse_isa(text);
  if (!level) {
    std::fprintf(stderr, "PLIMSOLL_ISA: expected portable, avx2, avx512, avx512_bf16 or amx, got '%s'\n", text);
    std::exit(2);
  }
  if (*level > detected_isa()) {
    std::fprintf(stderr, "PLIMSOLL_ISA: expected at most %s on this processor, got '%s'\n",
                 std::string(name(detected_isa())).c_str(), text);
    std::exit(2);
  }
  return static_cast<int>(*level);
}

const Detection& detected() {
  static const Detection found = detect();
  return found;
}

int environment() {
  static const int level = environment_level();
  return level;
}

thread_local int scoped_level = -1;

bool is_intel() {
  const Cpuid zero(0, 0);
  return zero.ebx == signature_INTEL_ebx && zero.edx == signature_INTEL_edx && zero.ecx == signature_INTEL_ecx;
}

}  // namespace

std::string_view name(Isa level) { return kNames[static_cast<size_t>(level)]; }

std::optional<Isa> parse_isa(std::string_view text) {
  const auto found = std::find(kNames.begin(), kNames.end(), text);
  if (found == kNames.end()) return std::nullopt;
  return static_cast<Isa>(found - kNames.begin());
}

Isa detected_isa() { return detected().isa; }

std::string_view amx_refusal() { return detected().amx_refusal; }

Isa isa() {
  int level = static_cast<int>(detected_isa());
  if (environment() >= 0) level = std::min(level, environment());
  if (scoped_level >= 0) level = std::min(level, scoped_level);
  return static_cast<Isa>(level);
}

std::optional<Isa> scoped_isa() {
  if (scoped_level < 0) return std::nullopt;
  return static_cast<Isa>(scoped_level);
}

bool isa_is_automatic() { return environment() < 0 && scoped_level < 0; }

Isa matmul_isa() { return isa() == Isa::kAmx ? Isa::kAmx : vector_matmul_isa(); }

Isa vector_matmul_isa() {
  static const bool slow_dpbf16 = is_intel();
  const Isa level = std::min(isa(), Isa::kAvx512Bf16);
  return level == Isa::kAvx512Bf16 && slow_dpbf16 && isa_is_automatic() ? Isa::kAvx512 : level;
}

std::string cpu_name() {
  std::array<unsigned, 12> words{};
  if (__get_cpuid_max(0x80000000u, nullptr) < 0x80000004u) return "unknown";
  for (unsigned leaf = 0; leaf < 3; ++leaf) {
    unsigned* w = &words[leaf * 4];
    __get_cpuid(0x80000002u + leaf, w, w + 1, w + 2, w + 3);
  }
  std::array<char, 49> text{};
  std::memcpy(text.data(), words.data(), sizeof(words));
  std::string result(text.data());
  result.erase(0, result.find_first_not_of(' '));
  result.erase(result.find_last_not_of(' ') + 1);
  return result;
}

ScopedIsa::ScopedIsa(Isa level) : previous_(scoped_level) {
  const int wanted = static_cast<int>(level);
  scoped_level = previous_ >= 0 ? std::min(previous_, wanted) : wanted;
}

ScopedIsa::~ScopedIsa() { scoped_level = previous_; }

}  // namespace plimsoll::runtime
