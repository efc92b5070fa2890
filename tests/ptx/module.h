// PTX text as data: kernels, their variables and instructions. Source of the language: NVIDIA, "PTX ISA" 9.0.
#pragma once

#include <cstdint>
#include <map>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace plimsoll::ptx {

// Anything that a kernel must not do, or that this interpreter does not know.
struct Fault : std::runtime_error {
  using std::runtime_error::runtime_error;
};

enum class Space : uint8_t { kGeneric, kGlobal, kShared, kLocal, kParam };

struct Operand {
  enum class Kind : uint8_t {
    kNone,       // _
    kRegister,   // index
    kImmediate,  // value
    kSpecial,    // name: %tid.x and the like
    kVariable,   // space, value: its offset there
    kLabel,      // name
    kAddress,    // [parts[0] + value]
    kVector,     // {parts}, and d|p
  };
  Kind kind = Kind::kNone;
  int index = 0;
  uint64_t value = 0;
  Space space = Space::kGeneric;
  bool negated = false;  // !%p
  std::string name = {};
  std::vector<Operand> parts = {};
};

struct Place {
  int file = 0, line = 0;
};

struct Instruction {
  int line = 0;                    // of the PTX text
  Place written, inlined;          // in the CUDA source, if the text says it: itself, and what it is part of
  std::string source;              // file:line of both
  std::string text;                // ld.global.v4.b32
  std::vector<std::string> words;  // ld, global, v4, b32
  int predicate = -1;              // register, or none
  bool predicate_negated = false;
  std::vector<Operand> operands;
  int target = 0;  // of a branch: an instruction's number

  bool has(std::string_view word) const;
  const std::string& last() const { return words.back(); }
};

struct Variable {
  Space space = Space::kShared;
  int64_t offset = 0, bytes = 0;
};

struct Kernel {
  std::string name;
  int64_t parameter_bytes = 0, shared_bytes = 0, local_bytes = 0;
  int registers = 0;
  std::map<std::string, Variable> variables;
  std::vector<Instruction> instructions;
};

struct Module {
  std::string target;  // sm_90a
  std::map<std::string, Kernel> kernels;

  const Kernel& kernel(const std::string& name) const;
};

// Fault: what the text says and is not known, with its line.
Module parse_module(std::string_view text);
Module read_module(const std::string& path);

}  // namespace plimsoll::ptx
