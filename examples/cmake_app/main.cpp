#include <cstdio>

#include "plimsoll/runtime/cpu.h"
#include "plimsoll/runtime/threads.h"

int main() {
  using namespace plimsoll;
  std::printf("%s: %s, %d threads\n", runtime::cpu_name().c_str(), std::string(runtime::name(runtime::isa())).c_str(),
              runtime::threads());
}
