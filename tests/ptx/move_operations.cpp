#include <cmath>

#include "tests/ptx/operations.h"

namespace plimsoll::ptx {
namespace {

using Kind = Operand::Kind;

// mov.b32 {%rs1, %rs2}, %r1 and back: parts from the lowest bits on.
std::optional<Step> move(const Instruction& i) {
  if (i.words.size() != 2) return std::nullopt;
  const Operand &d = i.operands.at(0), &a = i.operands.at(1);
  const size_t digit = i.last().find_first_of("0123456789");
  const uint64_t bits = digit == std::string::npos ? 8 : std::stoull(i.last().substr(digit));
  if (d.kind == Kind::kVector) {
    const uint64_t part = bits / d.parts.size();
    return on_thread([&d, &a, part](Thread& t) {
      const uint64_t value = value_of(t, a);
      for (size_t k = 0; k < d.parts.size(); ++k) {
        put(t, d.parts[k], value >> (part * k) & (part == 64 ? ~uint64_t{0} : (uint64_t{1} << part) - 1));
      }
    });
  }
  if (a.kind == Kind::kVector) {
    const uint64_t part = bits / a.parts.size();
    return on_thread([&d, &a, part](Thread& t) {
      uint64_t value = 0;
      for (size_t k = 0; k < a.parts.size(); ++k) {
        value |= (value_of(t, a.parts[k]) & ((uint64_t{1} << part) - 1)) << (part * k);
      }
      put(t, d, value);
    });
  }
  const uint64_t mask = bits == 64 ? ~uint64_t{0} : (uint64_t{1} << bits) - 1;
  return on_thread([&d, &a, mask](Thread& t) { put(t, d, value_of(t, a) & mask); });
}

// Bits move; types have widths alone.
std::optional<Step> select(const Instruction& i) {
  if (i.words.size() != 2) return std::nullopt;
  return on_thread([&o = i.operands](Thread& t) {
    put(t, o.at(0), value_of(t, o.at(3)) != 0 ? value_of(t, o.at(1)) : value_of(t, o.at(2)));
  });
}

enum class Comparison { kEqual, kNotEqual, kLess, kLessEqual, kGreater, kGreaterEqual, kNumbers, kNan, kUnknown };

Comparison comparison_of(const std::string& name) {
  if (name == "eq") return Comparison::kEqual;
  if (name == "ne") return Comparison::kNotEqual;
  if (name == "lt" || name == "lo") return Comparison::kLess;
  if (name == "le" || name == "ls") return Comparison::kLessEqual;
  if (name == "gt" || name == "hi") return Comparison::kGreater;
  if (name == "ge" || name == "hs") return Comparison::kGreaterEqual;
  if (name == "num") return Comparison::kNumbers;
  if (name == "nan") return Comparison::kNan;
  return Comparison::kUnknown;
}

// if_nan: the result where an operand is NaN.
template <class T>
bool compare(Comparison comparison, bool if_nan, T a, T b) {
  bool has_nan = false;
  if constexpr (std::is_floating_point_v<T>) has_nan = std::isnan(a) || std::isnan(b);
  switch (comparison) {
    case Comparison::kNumbers:
      return !has_nan;
    case Comparison::kNan:
      return has_nan;
    case Comparison::kEqual:
      return has_nan ? if_nan : a == b;
    case Comparison::kNotEqual:
      return has_nan ? if_nan : a != b;
    case Comparison::kLess:
      return has_nan ? if_nan : a < b;
    case Comparison::kLessEqual:
      return has_nan ? if_nan : a <= b;
    case Comparison::kGreater:
      return has_nan ? if_nan : a > b;
    case Comparison::kGreaterEqual:
      return has_nan ? if_nan : a >= b;
    case Comparison::kUnknown:
      break;
  }
  throw Fault("unknown comparison");
}

// setp.lt.and.s32 p, a, b, !q
template <class T>
std::optional<Step> set_predicate(const Instruction& i) {
  std::string name = i.words.at(1);
  const bool if_nan = std::is_floating_point_v<T> && name.size() == 3 && name.back() == 'u';
  if (if_nan) name.pop_back();
  const Comparison comparison = comparison_of(name);
  const bool joins = i.words.size() == 4;
  if (comparison == Comparison::kUnknown || i.words.size() > 4 || i.operands.at(0).kind == Kind::kVector)
    return std::nullopt;
  if (joins && i.words[2] != "and" && i.words[2] != "or" && i.words[2] != "xor") return std::nullopt;
  return on_thread([&i, comparison, if_nan, joins](Thread& t) {
    const auto& o = i.operands;
    bool result = compare<T>(comparison, if_nan, get<T>(t, o.at(1)), get<T>(t, o.at(2)));
    if (joins) {
      const bool other = value_of(t, o.at(3)) != 0;
      result = i.words[2] == "and" ? result && other : i.words[2] == "or" ? result || other : result != other;
    }
    put(t, o.at(0), result ? 1 : 0);
  });
}

// Between addresses of a space and generic ones.
std::optional<Step> convert_address(const Instruction& i) {
  const uint64_t window = i.has("shared") ? kSharedWindow : i.has("local") ? kLocalWindow : 0;
  if (!are_known(i, {"to", "global", "shared", "local", "param", "u64"})) return std::nullopt;
  const uint64_t change = i.has("to") ? 0 - window : window;
  return unary<uint64_t>(i, [change](uint64_t a) { return a + change; });
}

}  // namespace

std::optional<Step> make_move(const Instruction& i) {
  const std::string& name = i.words[0];
  // Predicates are 0 or 1, and -1 is true.
  if (i.text == "mov.pred") return unary<uint8_t>(i, [](uint8_t a) { return static_cast<uint8_t>(a != 0 ? 1 : 0); });
  if (name == "mov") return move(i);
  if (name == "selp") return select(i);
  if (name == "cvta") return convert_address(i);
  if (name != "setp") return std::nullopt;
  if (i.last() == "f32") return set_predicate<float>(i);
  return with_integer(i.last(), [&]<class T>() { return set_predicate<T>(i); });
}

}  // namespace plimsoll::ptx
