#include "tests/amx/tile_emulator.h"

#include <cpuid.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdlib>
#include <string_view>

#include "tests/amx/tile_registers.h"

namespace plimsoll::amx {
namespace {

std::atomic<int64_t> products = 0, configured = 0;
thread_local TileRegisters registers;  // in the program's own image, so a handler may use it

[[noreturn]] void end(std::string_view message) {
  if (write(STDERR_FILENO, message.data(), message.size()) < 0) _exit(2);
  std::abort();
}

void execute(const TileInstruction& instruction) {
  const bool before = registers.configured();
  if (!registers.execute(instruction)) end("tile emulator: the processor would raise an exception here\n");
  if (instruction.operation == TileOperation::kMultiplyBf16) ++products;
  configured += (registers.configured() ? 1 : 0) - (before ? 1 : 0);
}

// As many tile instructions as follow each other: a signal costs some microseconds.
void on_illegal_instruction(int, siginfo_t*, void* opaque) {
  ucontext_t& context = *static_cast<ucontext_t*>(opaque);
  greg_t& at = context.uc_mcontext.gregs[REG_RIP];
  const auto next = [&] { return decode_tile_instruction(reinterpret_cast<const uint8_t*>(at), context); };
  std::optional<TileInstruction> instruction = next();
  if (!instruction) end("tile emulator: an illegal instruction that is none of tiles\n");
  for (; instruction; instruction = next()) {
    execute(*instruction);
    at += instruction->length;
  }
}

}  // namespace

bool can_emulate_tiles() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) == 0 || (edx >> 24 & 1u) != 0) return false;
  return __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512vbmi");
}

void emulate_tiles() {
  struct sigaction action = {};
  action.sa_sigaction = on_illegal_instruction;
  action.sa_flags = SA_SIGINFO;
  sigaction(SIGILL, &action, nullptr);
}

void set_products_wrong(bool wrong) { TileRegisters::wrong = wrong; }

TileCounts tile_counts() { return {.products = products, .configured = configured}; }

}  // namespace plimsoll::amx
