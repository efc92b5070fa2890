#include "tests/ptx/operations.h"

#include <algorithm>

namespace plimsoll::ptx {
namespace {

using Kind = Operand::Kind;

uint64_t special_value(const Thread& thread, const std::string& name) {
  if (name == "%tid.x") return thread.number;
  if (name == "%ctaid.x") return thread.block->number;
  if (name == "%ntid.x") return thread.block->threads_asked;
  if (name == "%nctaid.x") return thread.block->of_blocks;
  if (name == "%laneid") return thread.lane();
  if (name == "%tid.y" || name == "%tid.z" || name == "%ctaid.y" || name == "%ctaid.z") return 0;
  throw Fault("unknown special register " + name);
}

}  // namespace

uint64_t value_of(const Thread& thread, const Operand& operand) {
  switch (operand.kind) {
    case Kind::kRegister:
      return operand.negated ? thread.registers[static_cast<size_t>(operand.index)] ^ 1u
                             : thread.registers[static_cast<size_t>(operand.index)];
    case Kind::kImmediate:
    case Kind::kVariable:
      return operand.value;
    case Kind::kSpecial:
      return special_value(thread, operand.name);
    case Kind::kNone:
    case Kind::kLabel:
    case Kind::kAddress:
    case Kind::kVector:
      break;
  }
  throw Fault("expected a value, got operand " + operand.name);
}

void put(Thread& thread, const Operand& operand, uint64_t value) {
  if (operand.kind == Kind::kNone) return;
  if (operand.kind != Kind::kRegister) throw Fault("expected a register, got operand " + operand.name);
  thread.registers[static_cast<size_t>(operand.index)] = value;
}

bool are_known(const Instruction& i, std::initializer_list<std::string_view> words) {
  return std::all_of(i.words.begin() + 1, i.words.end(), [&](const std::string& word) {
    return std::find(words.begin(), words.end(), word) != words.end();
  });
}

std::optional<Step> make_control(const Instruction& i) {
  const std::string& text = i.text;
  if (text == "bra" || text == "bra.uni") return Step{.kind = Step::Kind::kBranch};
  if (text == "ret" || text == "exit") return Step{.kind = Step::Kind::kExit};
  const bool is_barrier = text == "bar.sync" || text == "barrier.sync";
  if (is_barrier && i.operands.size() == 1 && i.operands[0].value == 0) return Step{.kind = Step::Kind::kBarrier};
  return std::nullopt;
}

Step make_step(const Instruction& i) {
  for (auto* make : {make_control, make_move, make_memory, make_float, make_integer, make_conversion, make_warp}) {
    try {
      if (std::optional<Step> step = make(i)) return *std::move(step);
    } catch (const std::out_of_range&) {
      throw Fault(i.text + ": too few operands");
    }
  }
  throw Fault("unknown instruction " + i.text);
}

}  // namespace plimsoll::ptx
