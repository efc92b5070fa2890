#include "plimsoll/runtime/cpu.h"

#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace plimsoll::runtime {
namespace {

constexpr std::array<std::string_view, 5> kNames = {"portable", "avx2", "avx512", "avx512_bf16", "amx"};

struct Cpuid {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  Cpuid(unsigned leaf, unsigned subleaf) { __get_cpuid_count(leaf, subleaf, &eax, &ebx, &ecx, &edx); }
};

constexpr bool bit(unsigned word, int index) { return (word >> index) & 1u; }

// Register state that the operating system saves: XCR0 (Intel SDM vol. 1, 13.3).
unsigned long long enabled_state() {
  if (!bit(Cpuid(1, 0).ecx, 27)) return 0;  // OSXSAVE
  unsigned low = 0, high = 0;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (static_cast<unsigned long long>(high) << 32) | low;
}

// Linux hands out the tile-data state (XSAVE component 18) per process on request.
bool request_amx_permission() {
  constexpr long kArchReqXcompPerm = 0x1023, kTileData = 18;
  return syscall(SYS_arch_prctl, kArchReqXcompPerm, kTileData) == 0;
}

Isa detect() {
  const unsigned long long state = enabled_state();
  const Cpuid one(1, 0), seven(7, 0), seven_one(7, 1);
  const bool ymm = (state & 0x6) == 0x6, zmm = (state & 0xe6) == 0xe6, tiles = (state & 0x60000) == 0x60000;
  if (!(ymm && bit(one.ecx, 12) && bit(one.ecx, 29) && bit(seven.ebx, 5))) return Isa::kPortable;  // FMA, F16C, AVX2
  const bool avx512 = zmm && bit(seven.ebx, 16) && bit(seven.ebx, 17) && bit(seven.ebx, 30) && bit(seven.ebx, 31);
  if (!avx512) return Isa::kAvx2;
  if (!(bit(seven.ecx, 1) && bit(seven_one.eax, 5))) return Isa::kAvx512;  // VBMI, AVX512_BF16
  const bool amx = tiles && bit(seven.edx, 22) && bit(seven.edx, 24) && bit(seven.edx, 25);
  return amx && request_amx_permission() ? Isa::kAmx : Isa::kAvx512Bf16;
}

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

Isa detected_isa() {
  static const Isa level = detect();
  return level;
}

Isa isa() {
  int level = static_cast<int>(detected_isa());
  if (environment() >= 0) level = std::min(level, environment());
  if (scoped_level >= 0) level = std::min(level, scoped_level);
  return static_cast<Isa>(level);
}

bool isa_is_automatic() { return environment() < 0 && scoped_level < 0; }

Isa matmul_isa() {
  static const bool slow_dpbf16 = is_intel();
  const Isa level = isa();
  return level >= Isa::kAvx512Bf16 && slow_dpbf16 && isa_is_automatic() ? Isa::kAvx512 : level;
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
