// Instructions by families: a function make_x gives the steps of its family, and nothing for an instruction or a modifier that is none
// of them.
#pragma once

#include <cstring>
#include <optional>

#include "tests/ptx/machine.h"

namespace plimsoll::ptx {

std::optional<Step> make_integer(const Instruction& i);
std::optional<Step> make_float(const Instruction& i);
std::optional<Step> make_move(const Instruction& i);  // mov, selp, setp, cvta
std::optional<Step> make_conversion(const Instruction& i);
std::optional<Step> make_memory(const Instruction& i);
std::optional<Step> make_warp(const Instruction& i);
std::optional<Step> make_control(const Instruction& i);

// Addresses of shared and local memory among generic ones.
inline constexpr uint64_t kSharedWindow = uint64_t{1} << 40, kLocalWindow = uint64_t{1} << 41;

uint64_t value_of(const Thread& thread, const Operand& operand);
void put(Thread& thread, const Operand& operand, uint64_t value);

// The low bits as a T, and back: what is above them is 0.
template <class T>
T get(const Thread& thread, const Operand& operand) {
  const uint64_t bits = value_of(thread, operand);
  T x;
  std::memcpy(&x, &bits, sizeof(x));
  return x;
}
template <class T>
void set(Thread& thread, const Operand& operand, T x) {
  uint64_t bits = 0;
  std::memcpy(&bits, &x, sizeof(x));
  put(thread, operand, bits);
}

// True if each word after the first is one of these.
bool are_known(const Instruction& i, std::initializer_list<std::string_view> words);

inline Step on_thread(Action action) { return {.kind = Step::Kind::kThread, .action = std::move(action)}; }

template <class T, class F>
Step unary(const Instruction& i, F f) {
  return on_thread([&d = i.operands.at(0), &a = i.operands.at(1), f](Thread& t) { set<T>(t, d, f(get<T>(t, a))); });
}
template <class T, class F>
Step binary(const Instruction& i, F f) {
  return on_thread([&d = i.operands.at(0), &a = i.operands.at(1), &b = i.operands.at(2), f](Thread& t) {
    set<T>(t, d, f(get<T>(t, a), get<T>(t, b)));
  });
}
template <class T, class F>
Step ternary(const Instruction& i, F f) {
  return on_thread([&d = i.operands.at(0), &a = i.operands.at(1), &b = i.operands.at(2), &c = i.operands.at(3),
                    f](Thread& t) { set<T>(t, d, f(get<T>(t, a), get<T>(t, b), get<T>(t, c))); });
}

// Calls f.operator()<T>() for the integer type of this name; nothing for another name. b32 counts as u32.
template <class F>
std::optional<Step> with_integer(std::string_view name, F f) {
  if (name.size() < 2) return std::nullopt;
  const std::string_view bits = name.substr(1);
  const bool is_signed = name[0] == 's';
  if (!is_signed && name[0] != 'u' && name[0] != 'b') return std::nullopt;
  if (bits == "8") return is_signed ? f.template operator()<int8_t>() : f.template operator()<uint8_t>();
  if (bits == "16") return is_signed ? f.template operator()<int16_t>() : f.template operator()<uint16_t>();
  if (bits == "32") return is_signed ? f.template operator()<int32_t>() : f.template operator()<uint32_t>();
  if (bits == "64") return is_signed ? f.template operator()<int64_t>() : f.template operator()<uint64_t>();
  return std::nullopt;
}

}  // namespace plimsoll::ptx
