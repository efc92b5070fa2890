// main() of tests whose tiles are emulated.
#include <gtest/gtest.h>

#include <cstdio>

#include "tests/amx/tile_emulator.h"

int main(int argc, char** argv) {
  if (!plimsoll::amx::can_emulate_tiles()) {
    std::puts("skipped: tiles are emulated on processors with AVX-512 BF16 and without AMX");
    return 77;
  }
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
