#include <algorithm>
#include <bit>
#include <type_traits>

#include "tests/ptx/operations.h"

namespace plimsoll::ptx {
namespace {

template <class T>
using Unsigned = std::make_unsigned_t<T>;

// Integers twice as wide, of the same sign.
template <int kBytes, bool kSigned>
struct WideOf {
  using Type = std::conditional_t<kSigned, int32_t, uint32_t>;
};
template <bool kSigned>
struct WideOf<4, kSigned> {
  using Type = std::conditional_t<kSigned, int64_t, uint64_t>;
};
template <bool kSigned>
struct WideOf<8, kSigned> {
  using Type = std::conditional_t<kSigned, __int128, unsigned __int128>;
};
template <class T>
using Wide = typename WideOf<sizeof(T), std::is_signed_v<T>>::Type;

template <class T>
T wrapped_add(T a, T b) {
  return static_cast<T>(static_cast<Unsigned<T>>(a) + static_cast<Unsigned<T>>(b));
}
template <class T>
T low_product(T a, T b) {
  return static_cast<T>(static_cast<uint64_t>(a) * static_cast<uint64_t>(b));
}
template <class T>
T shifted_left(T a, uint32_t count) {
  return count >= 8 * sizeof(T) ? T{0} : static_cast<T>(static_cast<Unsigned<T>>(a) << count);
}
template <class T>
T shifted_right(T a, uint32_t count) {
  return static_cast<T>(a >> std::min<uint32_t>(count, 8 * sizeof(T) - 1) >> (count >= 8 * sizeof(T) ? 1 : 0));
}

// shl and shr have a 32-bit count whatever their type is.
template <class T, class F>
Step shift(const Instruction& i, F f) {
  return on_thread([&d = i.operands.at(0), &a = i.operands.at(1), &b = i.operands.at(2), f](Thread& t) {
    set<T>(t, d, f(get<T>(t, a), get<uint32_t>(t, b)));
  });
}

template <class T>
std::optional<Step> arithmetic(const Instruction& i) {
  const std::string& name = i.words[0];
  const bool is_plain = i.words.size() == 2, is_low = i.words.size() == 3 && i.words[1] == "lo";
  if (name == "add" && is_plain) return binary<T>(i, wrapped_add<T>);
  if (name == "sub" && is_plain) {
    return binary<T>(
        i, [](T a, T b) { return static_cast<T>(static_cast<Unsigned<T>>(a) - static_cast<Unsigned<T>>(b)); });
  }
  if (name == "mul" && is_low) return binary<T>(i, low_product<T>);
  if (name == "mad" && is_low) return ternary<T>(i, [](T a, T b, T c) { return wrapped_add(low_product(a, b), c); });
  if (name == "mul" && i.has("hi")) {
    return binary<T>(i, [](T a, T b) { return static_cast<T>((Wide<T>{a} * Wide<T>{b}) >> (8 * sizeof(T))); });
  }
  if constexpr (sizeof(T) <= 4) {
    if ((name == "mul" || name == "mad") && i.has("wide")) {
      using W = Wide<T>;
      const Operand* addend = name == "mad" ? &i.operands.at(3) : nullptr;
      return on_thread([&d = i.operands.at(0), &a = i.operands.at(1), &b = i.operands.at(2), addend](Thread& t) {
        const W product = W{get<T>(t, a)} * W{get<T>(t, b)};
        set<W>(t, d, addend != nullptr ? wrapped_add(product, get<W>(t, *addend)) : product);
      });
    }
  }
  if ((name == "div" || name == "rem") && is_plain) {
    return binary<T>(i, [is_div = name == "div"](T a, T b) {
      if (b == 0) throw Fault("division by zero");
      const Wide<T> quotient = Wide<T>{a} / Wide<T>{b};
      return static_cast<T>(is_div ? quotient : Wide<T>{a} - quotient * Wide<T>{b});
    });
  }
  if (name == "min" && is_plain) return binary<T>(i, [](T a, T b) { return std::min(a, b); });
  if (name == "max" && is_plain) return binary<T>(i, [](T a, T b) { return std::max(a, b); });
  if (name == "neg" && is_plain)
    return unary<T>(i, [](T a) { return static_cast<T>(0 - static_cast<Unsigned<T>>(a)); });
  if (name == "abs" && is_plain) {
    return unary<T>(
        i, [](T a) { return static_cast<T>(a < 0 ? 0 - static_cast<Unsigned<T>>(a) : static_cast<Unsigned<T>>(a)); });
  }
  return std::nullopt;
}

template <class T>
std::optional<Step> logic(const Instruction& i) {
  const std::string& name = i.words[0];
  if (i.words.size() != 2) return std::nullopt;
  if (name == "and") return binary<T>(i, [](T a, T b) { return static_cast<T>(a & b); });
  if (name == "or") return binary<T>(i, [](T a, T b) { return static_cast<T>(a | b); });
  if (name == "xor") return binary<T>(i, [](T a, T b) { return static_cast<T>(a ^ b); });
  if (name == "not") return unary<T>(i, [](T a) { return static_cast<T>(~a); });
  if (name == "shl") return shift<T>(i, shifted_left<T>);
  if (name == "shr") return shift<T>(i, shifted_right<T>);
  using U = Unsigned<T>;
  if (name == "clz" || name == "popc") {
    return on_thread([&d = i.operands.at(0), &a = i.operands.at(1), is_clz = name == "clz"](Thread& t) {
      const U x = get<U>(t, a);
      set<int32_t>(t, d, is_clz ? std::countl_zero(x) : std::popcount(x));
    });
  }
  return std::nullopt;
}

// Predicates are 0 or 1, and -1 is true.
std::optional<Step> predicate_logic(const Instruction& i) {
  const std::string& name = i.words[0];
  using T = uint8_t;
  if (name == "not") return unary<T>(i, [](T a) { return static_cast<T>(a == 0); });
  if (name == "and") return binary<T>(i, [](T a, T b) { return static_cast<T>(a != 0 && b != 0); });
  if (name == "or") return binary<T>(i, [](T a, T b) { return static_cast<T>(a != 0 || b != 0); });
  if (name == "xor") return binary<T>(i, [](T a, T b) { return static_cast<T>((a != 0) != (b != 0)); });
  return std::nullopt;
}

uint32_t permuted(uint32_t a, uint32_t b, uint32_t selector) {
  const uint64_t bytes = a | uint64_t{b} << 32;
  uint32_t result = 0;
  for (int byte = 0; byte < 4; ++byte) {
    const uint32_t nibble = selector >> (4 * byte) & 15;
    uint32_t value = static_cast<uint32_t>(bytes >> (8 * (nibble & 7))) & 0xff;
    if ((nibble & 8) != 0) value = (value & 0x80) != 0 ? 0xff : 0;
    result |= value << (8 * byte);
  }
  return result;
}

// Bits [at, at + count) of a; signed types repeat the highest of them.
template <class T>
T extracted(T a, uint32_t at, uint32_t count) {
  constexpr uint32_t kBits = 8 * sizeof(T);
  at &= 0xff;
  count &= 0xff;
  using U = Unsigned<T>;
  const uint32_t last = std::min(at + count, kBits) - 1;
  const U fill =
      std::is_signed_v<T> && count > 0 && (static_cast<U>(a) >> last & 1) != 0 ? static_cast<U>(~U{0}) : U{0};
  const U mask = count >= kBits ? static_cast<U>(~U{0}) : static_cast<U>((U{1} << count) - 1);
  const U found = at >= kBits ? fill : shifted_right<U>(static_cast<U>(a), at);
  const U above = at >= kBits ? U{0} : static_cast<U>(at == 0 ? U{0} : shifted_left<U>(fill, kBits - at));
  return static_cast<T>(((found | above) & mask) | (fill & static_cast<U>(~mask)));
}

uint32_t inserted(uint32_t from, uint32_t into, uint32_t at, uint32_t count) {
  const uint32_t mask = shifted_left<uint32_t>(count >= 32 ? ~0u : (1u << count) - 1, at);
  return (into & ~mask) | (shifted_left<uint32_t>(from, at) & mask);
}

std::optional<Step> bit_fields(const Instruction& i) {
  const std::string& text = i.text;
  const auto* operands = &i.operands;
  if (text == "prmt.b32") return ternary<uint32_t>(i, permuted);
  if (text == "bfe.u32") return ternary<uint32_t>(i, extracted<uint32_t>);
  if (text == "bfe.s32") {
    return on_thread([operands](Thread& t) {
      set<int32_t>(t, operands->at(0),
                   extracted<int32_t>(get<int32_t>(t, operands->at(1)), get<uint32_t>(t, operands->at(2)),
                                      get<uint32_t>(t, operands->at(3))));
    });
  }
  if (text == "bfi.b32") {
    return on_thread([operands](Thread& t) {
      const auto at = [&](size_t k) { return get<uint32_t>(t, operands->at(k)); };
      set<uint32_t>(t, operands->at(0), inserted(at(1), at(2), at(3) & 0xff, at(4) & 0xff));
    });
  }
  if (text == "lop3.b32") {
    return on_thread([operands](Thread& t) {
      const auto at = [&](size_t k) { return get<uint32_t>(t, operands->at(k)); };
      uint32_t result = 0;
      for (uint32_t bit = 0; bit < 32; ++bit) {
        const uint32_t row = (at(1) >> bit & 1) << 2 | (at(2) >> bit & 1) << 1 | (at(3) >> bit & 1);
        result |= (at(4) >> row & 1) << bit;
      }
      set<uint32_t>(t, operands->at(0), result);
    });
  }
  if (text == "shf.l.wrap.b32" || text == "shf.r.wrap.b32") {
    return ternary<uint32_t>(i, [is_left = i.words[1] == "l"](uint32_t low, uint32_t high, uint32_t count) {
      const uint64_t both = uint64_t{high} << 32 | low;
      return static_cast<uint32_t>(is_left ? both << (count & 31) >> 32 : both >> (count & 31));
    });
  }
  return std::nullopt;
}

}  // namespace

std::optional<Step> make_integer(const Instruction& i) {
  if (auto step = bit_fields(i)) return step;
  if (i.last() == "pred") return predicate_logic(i);
  return with_integer(i.last(), [&]<class T>() -> std::optional<Step> {
    if (auto step = arithmetic<T>(i)) return step;
    return logic<T>(i);
  });
}

}  // namespace plimsoll::ptx
