// Single instructions on one thread, against values worked out from the PTX ISA.
#include <bit>
#include <cmath>
#include <limits>

#include "tests/ptx/kernel_testing.h"

namespace plimsoll::ptx::testing {
namespace {

struct Case {
  const char* instruction;  // sets %d from %a, %b and %c; predicates are %p and %q
  uint64_t a, b, c, d;
};

uint64_t evaluated(const Case& one) {
  const std::string text = std::string(R"(
.version 9.0
.target sm_90a
.address_size 64
.visible .entry one(.param .b64 a, .param .b64 b, .param .b64 c, .param .b64 y)
{
  .reg .b64 %a, %b, %c, %d, %y;
  .reg .pred %p, %q;
  ld.param.b64 %a, [a];
  ld.param.b64 %b, [b];
  ld.param.b64 %c, [c];
  ld.param.b64 %y, [y];
  )") + one.instruction + "\n  st.global.b64 [%y], %d;\n  ret;\n}\n";
  const Module module = parse_module(text);
  Memory memory;
  const uint64_t y = memory.add_unwritten("y", 8);
  interpret(module.kernel("one"), memory, {1, 1}, one.a, one.b, one.c, y);
  uint64_t d = 0;
  std::memcpy(&d, memory.data(y), 8);
  return d;
}

uint64_t bits(float x) { return std::bit_cast<uint32_t>(x); }
uint64_t bits(double x) { return std::bit_cast<uint64_t>(x); }
constexpr uint64_t kNan = 0x7fffffff, kWideNan = 0x7fffffffffffffff;  // those that arithmetic makes
const float kInf = std::numeric_limits<float>::infinity();
// Pairs: %a becomes the upper half.
const char* const kE4m3 = "cvt.rn.satfinite.e4m3x2.f32 %d, %a, %b;";
const char* const kE5m2 = "cvt.rn.satfinite.e5m2x2.f32 %d, %a, %b;";

TEST(PtxInstruction, HasTheResultThatTheLanguageSays) {
  const Case cases[] = {
      {"add.s32 %d, %a, %b;", 0xffffffff, 2, 0, 1},
      {"sub.s64 %d, %a, %b;", 1, 2, 0, ~uint64_t{0}},
      {"mul.lo.s32 %d, %a, %b;", 0xffffffff, 3, 0, 0xfffffffd},
      {"mul.hi.u32 %d, %a, %b;", 0x80000000, 6, 0, 3},
      {"mul.hi.s32 %d, %a, %b;", 0x80000000, 2, 0, 0xffffffff},
      {"mul.wide.s32 %d, %a, %b;", 0xffffffff, 3, 0, static_cast<uint64_t>(-3)},
      {"mul.wide.u32 %d, %a, %b;", 0xffffffff, 3, 0, 0x2fffffffd},
      {"mad.lo.s32 %d, %a, %b, %c;", 5, 7, 0xffffffff, 34},
      {"div.s64 %d, %a, %b;", static_cast<uint64_t>(-7), 2, 0, static_cast<uint64_t>(-3)},
      {"rem.s64 %d, %a, %b;", static_cast<uint64_t>(-7), 2, 0, static_cast<uint64_t>(-1)},
      {"max.s32 %d, %a, %b;", 0xffffffff, 1, 0, 1},
      {"max.u32 %d, %a, %b;", 0xffffffff, 1, 0, 0xffffffff},
      {"shl.b32 %d, %a, %b;", 1, 32, 0, 0},
      {"shr.s32 %d, %a, %b;", 0x80000000, 40, 0, 0xffffffff},
      {"shr.u64 %d, %a, %b;", uint64_t{1} << 63, 63, 0, 1},
      {"shf.l.wrap.b32 %d, %a, %b, %c;", 0x80000000, 1, 1, 3},
      {"shf.r.wrap.b32 %d, %a, %b, %c;", 2, 1, 1, 0x80000001},
      {"bfe.u32 %d, %a, 4, 8;", 0xabcd, 0, 0, 0xbc},
      {"bfe.s32 %d, %a, 4, 8;", 0xabcd, 0, 0, 0xffffffbc},
      {"bfi.b32 %d, %a, %b, 8, 4;", 0xff, 0x1234, 0, 0x1f34},
      {"prmt.b32 %d, %a, %b, 0x7410;", 0x33221100, 0x77665544, 0, 0x77441100},
      {"prmt.b32 %d, %a, %b, 0x000b;", 0x80000000, 0, 0, 0x000000ff},
      {"lop3.b32 %d, %a, %b, %c, 0x96;", 0xf0, 0xcc, 0xaa, 0xf0 ^ 0xcc ^ 0xaa},
      {"clz.b32 %d, %a;", 1, 0, 0, 31},
      {"popc.b32 %d, %a;", 0xff, 0, 0, 8},
      {"not.b32 %d, %a;", 0, 0, 0, 0xffffffff},
      {"selp.b32 %d, %a, %b, %p;", 1, 2, 0, 2},
      {"setp.lt.s32 %p, %a, %b;\n selp.b32 %d, 1, 0, %p;", 0xffffffff, 0, 0, 1},
      {"setp.lt.u32 %p, %a, %b;\n selp.b32 %d, 1, 0, %p;", 0xffffffff, 0, 0, 0},
      {"setp.eq.b32 %q, 1, 1;\n setp.lt.and.s32 %p, %a, %b, !%q;\n selp.b32 %d, 1, 0, %p;", 1, 2, 0, 0},
      {"setp.neu.f32 %p, %a, %a;\n selp.b32 %d, 1, 0, %p;", kNan, 0, 0, 1},
      {"mov.pred %p, -1;\n not.pred %p, %p;\n selp.b32 %d, 1, 0, %p;", 0, 0, 0, 0},
      {"setp.eq.s32 %p, %a, %b;\n xor.pred %p, %p, -1;\n selp.b32 %d, 1, 0, %p;", 3, 3, 0, 0},
      {"setp.ne.f32 %p, %a, %a;\n selp.b32 %d, 1, 0, %p;", kNan, 0, 0, 0},
      {"mov.b32 {%a, %b}, %c;\n mov.b32 %d, {%b, %a};", 0, 0, 0x12345678, 0x56781234},
      {"cvt.u16.u32 %d, %a;", 0x12345678, 0, 0, 0x5678},
      {"cvt.s64.s32 %d, %a;", 0x80000000, 0, 0, 0xffffffff80000000},
      {"cvt.rn.f32.s64 %d, %a;", 16777217, 0, 0, bits(16777216.0f)},
      {"cvt.rzi.s32.f32 %d, %a;", bits(-2.75f), 0, 0, 0xfffffffe},
      {"add.f32 %d, %a, %b;", bits(kInf), bits(-kInf), 0, kNan},
      {"mul.f32 %d, %a, %b;", 0xffc01234, bits(1.0f), 0, kNan},
      {"fma.rn.f32 %d, %a, %b, %c;", bits(1 + 0x1p-23f), bits(1 - 0x1p-23f), bits(-1.0f), bits(-0x1p-46f)},
      {"add.rn.f64 %d, %a, %b;", bits(0x1p53), bits(1.0), 0, bits(0x1p53)},
      {"add.rn.f64 %d, %a, %b;", bits(HUGE_VAL), bits(-HUGE_VAL), 0, kWideNan},
      {"fma.rn.f64 %d, %a, %b, %c;", bits(1 + 0x1p-52), bits(1 - 0x1p-52), bits(-1.0), bits(-0x1p-104)},
      {"cvt.f64.f32 %d, %a;", bits(-0x1p-149f), 0, 0, bits(-0x1p-149)},
      {"cvt.f64.f32 %d, %a;", 0xffc00000, 0, 0, kWideNan},
      {"rcp.rn.f32 %d, %a;", bits(3.0f), 0, 0, bits(1.0f / 3.0f)},
      {"rcp.approx.ftz.f32 %d, %a;", bits(4.0f), 0, 0, bits(0.25f)},
      {"rcp.approx.ftz.f32 %d, %a;", bits(0x1p127f), 0, 0, 0},
      {"max.NaN.f32 %d, %a, %b;", kNan, bits(-1.0f), 0, kNan},
      {"max.NaN.f32 %d, %a, %b;", bits(-2.0f), bits(-1.0f), 0, bits(-1.0f)},
      {"min.f32 %d, %a, %b;", bits(0.0f), bits(-0.0f), 0, bits(-0.0f)},
      {"max.NaN.f32 %d, %a, %b;", bits(-1.0f), bits(2.0f), 0, bits(2.0f)},
      {"max.NaN.f32 %d, %a, %b;", bits(-0.0f), bits(0.0f), 0, bits(0.0f)},
      {"max.NaN.f32 %d, %a, %b;", bits(kInf), 0x7fc00000, 0, kNan},
      {"max.f32 %d, %a, %b;", kNan, bits(-1.0f), 0, bits(-1.0f)},
      {"abs.f32 %d, %a;", bits(-2.0f), 0, 0, bits(2.0f)},
      {"mul.rn.f64 %d, %a, %b;", bits(1.5), bits(-2.0), 0, bits(-3.0)},
      {"div.rn.f64 %d, %a, %b;", bits(1.0), bits(3.0), 0, bits(1.0 / 3.0)},
      {"div.rn.f64 %d, %a, %b;", bits(0.0), bits(0.0), 0, kWideNan},
      {"cvt.rn.f32.f64 %d, %a;", bits(1 + 0x1p-24), 0, 0, bits(1.0f)},
      {"cvt.rn.f32.f64 %d, %a;", 0xfff8000000000000, 0, 0, kNan},
      {"cvt.rn.f64.s64 %d, %a;", static_cast<uint64_t>(-3), 0, 0, bits(-3.0)},
      {"cvt.rn.bf16x2.f32 %d, %a, %b;", bits(1.0f), bits(-2.0f), 0, 0x3f80c000},
      {"cvt.rn.f16x2.f32 %d, %a, %b;", bits(65520.0f), 0xffc00000, 0, 0x7c007fff},
      {"cvt.f32.f16 %d, %a;", 0x8001, 0, 0, bits(-0x1p-24f)},
      {kE4m3, bits(464.0f), bits(-0x1p-10f), 0, 0x7e80},  // a tie goes to even, and keeps its sign
      {kE4m3, bits(kInf), 0xffc00000, 0, 0x7e7f},         // Inf saturates, NaN has no sign
      {kE5m2, bits(-kInf), bits(61440.0f), 0, 0xfb7b},
      {"cvt.rn.f16x2.e4m3x2 %d, %a;", 0x7e81, 0, 0, 0x5f009800},
      {"cvt.rn.f16x2.e5m2x2 %d, %a;", 0x7cff, 0, 0, 0x7c007fff},
  };
  for (const Case& one : cases) EXPECT_EQ(evaluated(one), one.d) << one.instruction;
}

TEST(PtxInstruction, WaitsForTheLanesOfItsMask) {
  // Odd lanes take another way and come to the same shuffle.
  const Module module = parse_module(R"(
.version 9.0
.target sm_90a
.address_size 64
.visible .entry lanes(.param .b64 y)
{
  .reg .b64 %y, %at;
  .reg .b32 %t, %x, %odd, %r;
  .reg .pred %p;
  ld.param.b64 %y, [y];
  mov.u32 %t, %tid.x;
  and.b32 %odd, %t, 1;
  setp.eq.s32 %p, %odd, 0;
  mov.b32 %x, 100;
  @%p bra $EVEN;
  add.s32 %x, %t, 1000;
  bra.uni $JOIN;
$EVEN:
  add.s32 %x, %t, 2000;
$JOIN:
  shfl.sync.bfly.b32 %r, %x, 1, 31, -1;
  mul.wide.u32 %at, %t, 4;
  add.s64 %y, %y, %at;
  st.global.b32 [%y], %r;
  ret;
}
)");
  for (int turn = 0; turn < 20; ++turn) {
    Memory memory;
    const uint64_t y = memory.add_unwritten("y", 128);
    interpret(module.kernel("lanes"), memory, {1, 32}, y);
    for (uint32_t lane = 0; lane < 32; ++lane) {
      uint32_t got = 0;
      std::memcpy(&got, memory.data(y) + 4 * lane, 4);
      EXPECT_EQ(got, lane % 2 == 0 ? 1001 + lane : 1999 + lane);
    }
  }
}

}  // namespace
}  // namespace plimsoll::ptx::testing
