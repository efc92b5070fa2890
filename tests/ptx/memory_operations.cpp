#include <algorithm>
#include <bit>
#include <cmath>

#include "tests/ptx/operations.h"

namespace plimsoll::ptx {
namespace {

using Access = Shadow::Access;
using Kind = Operand::Kind;

Space space_of(const Instruction& i) {
  if (i.has("global")) return Space::kGlobal;
  if (i.has("shared") || i.has("shared::cta")) return Space::kShared;
  if (i.has("local")) return Space::kLocal;
  if (i.has("param")) return Space::kParam;
  return Space::kGeneric;
}

size_t bytes_of(const std::string& type) {
  const size_t digit = type.find_first_of("0123456789");
  if (digit == std::string::npos) throw Fault("unknown type ." + type);
  return std::stoull(type.substr(digit)) / 8;
}

// Memory of `size` bytes at the address that the operand says, after all checks.
uint8_t* reach(Thread& t, const Operand& operand, Space space, Access access, size_t size) {
  uint64_t address = value_of(t, operand.parts.at(0)) + operand.value;
  if (space == Space::kGeneric) {
    space = address >= kLocalWindow + kSharedWindow ? Space::kGlobal
            : address >= kLocalWindow               ? Space::kLocal
                                                    : Space::kShared;
  } else if (space == Space::kShared) {
    address += kSharedWindow;
  } else if (space == Space::kLocal) {
    address += kLocalWindow;
  }
  const auto in_private = [&](const std::vector<uint8_t>& bytes, uint64_t offset, const char* name) {
    if (offset >= bytes.size() || size > bytes.size() - offset) {
      throw Fault("out of bounds: byte " + std::to_string(offset) + " of " + name);
    }
    if (offset % size != 0) throw Fault("not aligned: byte " + std::to_string(offset) + " of " + name);
    return const_cast<uint8_t*>(bytes.data()) + offset;
  };
  if (space == Space::kParam) return in_private(*t.block->parameters, address, "the arguments");
  if (space == Space::kLocal) return in_private(t.local, address - kLocalWindow, "local memory");
  Buffer& buffer = space == Space::kShared ? t.block->shared : t.block->memory->at(address);
  return check_access(buffer, {access, address, size, t.now, t.block->block_threads});
}

// Elements of v2 and v4.
const std::vector<Operand>& elements_of(const Operand& operand, std::vector<Operand>& one) {
  if (operand.kind == Kind::kVector) return operand.parts;
  one = {operand};
  return one;
}

uint64_t extended(uint64_t bits, size_t size, bool is_signed) {
  if (!is_signed || size == 8) return bits;
  const int shift = static_cast<int>(64 - 8 * size);
  return static_cast<uint64_t>(static_cast<int64_t>(bits << shift) >> shift);
}

std::optional<Step> load(const Instruction& i) {
  if (!are_known(i, {"global", "shared", "shared::cta", "local", "param", "nc",  "L1::no_allocate",
                     "v2",     "v4",     "b8",          "b16",   "b32",   "b64", "u8",
                     "u16",    "u32",    "u64",         "s8",    "s16",   "s32", "s64",
                     "f32",    "f64"})) {
    return std::nullopt;
  }
  std::vector<Operand> one;
  const size_t size = bytes_of(i.last());
  const bool is_signed = i.last()[0] == 's';
  return on_thread(
      [&i, space = space_of(i), elements = elements_of(i.operands.at(0), one), size, is_signed](Thread& t) {
        const uint8_t* p = reach(t, i.operands.at(1), space, Access::kRead, size * elements.size());
        for (const Operand& element : elements) {
          uint64_t bits = 0;
          std::memcpy(&bits, p, size);
          put(t, element, extended(bits, size, is_signed));
          p += size;
        }
      });
}

std::optional<Step> store(const Instruction& i) {
  if (!are_known(i, {"global", "shared", "shared::cta", "local", "v2", "v4", "b8", "b16", "b32", "b64", "u8", "u16",
                     "u32", "u64", "f32", "f64"})) {
    return std::nullopt;
  }
  std::vector<Operand> one;
  const size_t size = bytes_of(i.last());
  return on_thread([&i, space = space_of(i), elements = elements_of(i.operands.at(1), one), size](Thread& t) {
    uint8_t* p = reach(t, i.operands.at(0), space, Access::kWrite, size * elements.size());
    for (const Operand& element : elements) {
      const uint64_t bits = value_of(t, element);
      std::memcpy(p, &bits, size);
      p += size;
    }
  });
}

template <class T>
T updated(const Instruction& i, T old, T operand) {
  if (i.has("add")) return static_cast<T>(old + operand);
  if (i.has("max")) return std::max(old, operand);
  if (i.has("min")) return std::min(old, operand);
  if constexpr (std::is_integral_v<T>) {
    if (i.has("or")) return static_cast<T>(old | operand);
    if (i.has("and")) return static_cast<T>(old & operand);
  }
  if (i.has("exch")) return operand;
  throw Fault("unknown update " + i.text);
}

// atom d, [a], b, and red [a], b.
template <class T>
Step update(const Instruction& i) {
  const size_t first = i.words[0] == "atom" ? 1 : 0;
  return on_thread([&i, first, space = space_of(i)](Thread& t) {
    uint8_t* p = reach(t, i.operands.at(first), space, Access::kAtomic, sizeof(T));
    T old;
    std::memcpy(&old, p, sizeof(T));
    const T now = updated<T>(i, old, get<T>(t, i.operands.at(first + 1)));
    std::memcpy(p, &now, sizeof(T));
    if (first == 1) set<T>(t, i.operands.at(0), old);
  });
}

std::optional<Step> atomic(const Instruction& i) {
  if (!are_known(i, {"global", "shared", "relaxed", "gpu", "add", "max", "min", "or", "and", "exch", "b32", "b64",
                     "u32", "s32", "u64", "s64", "f32"})) {
    return std::nullopt;
  }
  if (i.last() == "f32" && (i.has("add") || i.has("exch"))) return update<float>(i);
  return with_integer(i.last(), [&]<class T>() -> std::optional<Step> { return update<T>(i); });
}

}  // namespace

std::optional<Step> make_memory(const Instruction& i) {
  const std::string& name = i.words[0];
  if (name == "ld") return load(i);
  if (name == "st") return store(i);
  if (name == "atom" || name == "red") return atomic(i);
  return std::nullopt;
}

}  // namespace plimsoll::ptx
