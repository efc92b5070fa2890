#include "tests/ptx/module.h"

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <sstream>

#include "tests/ptx/statements.h"

namespace plimsoll::ptx {
namespace {

using Kind = Operand::Kind;

[[noreturn]] void fail(int line, const std::string& message) {
  throw Fault("line " + std::to_string(line) + ": " + message);
}

std::vector<std::string> words_of(std::string_view text, char separator) {
  std::vector<std::string> result;
  for (const std::string_view word : split(text, separator)) result.emplace_back(word);
  return result;
}

// Bytes of the type that a declaration names, as b64.
int64_t bytes_of_type(const std::string& type, int line) {
  const size_t digit = type.find_first_of("0123456789");
  if (type == "pred") return 1;
  if (digit == std::string::npos) fail(line, "unknown type ." + type);
  return std::atoi(type.c_str() + digit) / 8;
}

class Parser {
 public:
  Module parse(std::string_view text) {
    for (const Statement& statement : cut_statements(text)) add(statement);
    if (kernel_ != nullptr) fail(0, "expected the end of kernel " + kernel_->name);
    for (auto& [name, kernel] : module_.kernels) {
      for (Instruction& instruction : kernel.instructions) {
        instruction.source =
            name_of(instruction.written) + (instruction.inlined.line > 0 ? " in " + name_of(instruction.inlined) : "");
      }
    }
    return std::move(module_);
  }

 private:
  void add(const Statement& s) {
    const std::string& text = s.text;
    if (text.starts_with(".section")) {
      return;  // names for debuggers
    } else if (s.end == '{') {
      ++depth_;
      if (!text.empty()) begin_kernel(s);
    } else if (s.end == '}') {
      if (!text.empty()) fail(s.line, "expected ;, got " + text + " }");
      if (--depth_ == 0) end_kernel();
    } else if (s.end == ':') {
      labels_[text] = static_cast<int>(kernel_->instructions.size());
    } else if (text.starts_with(".target")) {
      module_.target = words_of(text.substr(8), ',')[0];
    } else if (text.starts_with(".file")) {
      const std::string path = text.substr(0, text.rfind('"'));
      files_[std::atoi(text.c_str() + 5)] = path.substr(path.find_last_of("/\"") + 1);
    } else if (text.starts_with(".loc")) {
      source_ = {read_place(text, ".loc"), read_place(text, "inlined_at")};
    } else if (text.starts_with(".version") || text.starts_with(".address_size") || text.starts_with(".maxntid") ||
               text.starts_with(".minnctapersm") || text.starts_with(".pragma") || text.starts_with(".maxnreg")) {
      return;
    } else if (text.starts_with(".reg")) {
      declare_registers(s);
    } else if (text.starts_with('.')) {
      declare_variable(s);
    } else {
      kernel_->instructions.push_back(instruction(s));
    }
  }

  // The file and the line after a word.
  static Place read_place(const std::string& text, const char* word) {
    Place place;
    if (const size_t found = text.find(word); found != std::string::npos) {
      std::istringstream(text.substr(found + std::strlen(word))) >> place.file >> place.line;
    }
    return place;
  }

  std::string name_of(const Place& place) {
    return place.line > 0 ? files_[place.file] + ":" + std::to_string(place.line) : "";
  }

  void begin_kernel(const Statement& s) {
    const size_t entry = s.text.find(".entry"), open = s.text.find('(');
    if (entry == std::string::npos || depth_ != 1) fail(s.line, "expected a kernel, got " + s.text);
    const size_t close = s.text.rfind(')');
    kernel_ = &current_;
    current_ = {};
    current_.name = trimmed(s.text.substr(entry + 6, std::min(open, s.text.size()) - entry - 6));
    current_.variables = variables_;
    current_.shared_bytes = shared_bytes_;
    registers_.clear();
    labels_.clear();
    source_ = {};
    if (open == std::string::npos) return;
    for (const std::string_view parameter : split(std::string_view(s.text).substr(open + 1, close - open - 1), ',')) {
      declare(Statement{.line = s.line, .text = std::string(parameter)}, Space::kParam, current_.parameter_bytes);
    }
  }

  void end_kernel() {
    if (kernel_ == nullptr) return;
    for (Instruction& instruction : kernel_->instructions) {
      if (instruction.words[0] != "bra") continue;
      const auto label = labels_.find(instruction.operands.at(0).name);
      if (label == labels_.end()) fail(instruction.line, "no label " + instruction.operands[0].name);
      instruction.target = label->second;
    }
    kernel_->registers = static_cast<int>(registers_.size());
    module_.kernels[kernel_->name] = std::move(current_);
    kernel_ = nullptr;
  }

  // .reg .b32 %r<12>, or names.
  void declare_registers(const Statement& s) {
    const size_t type = s.text.find('.', 1), names = s.text.find_first_of(" \t", type);
    for (const std::string_view given : split(std::string_view(s.text).substr(names), ',')) {
      const size_t angle = given.find('<');
      const std::string name(given.substr(0, angle));
      if (angle == std::string_view::npos) {
        registers_.insert({name, static_cast<int>(registers_.size())});
        continue;
      }
      const int count = std::atoi(std::string(given.substr(angle + 1)).c_str());
      for (int i = 0; i < count; ++i) {
        registers_.insert({name + std::to_string(i), static_cast<int>(registers_.size())});
      }
    }
  }

  void declare_variable(const Statement& s) {
    if (s.text.find(".shared") != std::string::npos) {
      if (kernel_ != nullptr) return declare(s, Space::kShared, kernel_->shared_bytes);
      declare(s, Space::kShared, shared_bytes_);
    } else if (s.text.find(".local") != std::string::npos && kernel_ != nullptr) {
      declare(s, Space::kLocal, kernel_->local_bytes);
    } else {
      fail(s.line, "unknown directive " + s.text);
    }
  }

  // .shared .align 4 .b8 name[32]: takes its place in the space that has `used` bytes so far.
  void declare(const Statement& s, Space space, int64_t& used) {
    std::istringstream words(s.text);
    int64_t align = 1, bytes = 0, count = 1;
    std::string word, name;
    while (words >> word) {
      if (word == ".align") {
        words >> align;
      } else if (word[0] != '.') {
        name = word;
      } else if (word.size() > 2 && std::isdigit(static_cast<unsigned char>(word.back())) != 0) {
        bytes = bytes_of_type(word.substr(1), s.line);
      }
    }
    if (const size_t bracket = name.find('['); bracket != std::string::npos) {
      count = std::atoll(name.c_str() + bracket + 1);
      name.resize(bracket);
    }
    align = std::max(align, bytes);
    used = (used + align - 1) / align * align;
    (kernel_ != nullptr ? kernel_->variables : variables_)[name] = {space, used, bytes * count};
    used += bytes * count;
  }

  Instruction instruction(const Statement& s) {
    if (kernel_ == nullptr) fail(s.line, "unknown statement " + s.text);
    Instruction result;
    result.line = s.line;
    result.written = source_.written;
    result.inlined = source_.inlined;
    std::string_view text = s.text;
    if (text.starts_with('@')) {
      const size_t end = text.find_first_of(" \t");
      std::string_view name = text.substr(1, end - 1);
      result.predicate_negated = name.starts_with('!');
      if (result.predicate_negated) name.remove_prefix(1);
      result.predicate = register_index(std::string(name), s.line);
      text = trimmed(text.substr(end));
    }
    const size_t end = std::min(text.find_first_of(" \t"), text.size());
    result.text = text.substr(0, end);
    result.words = words_of(result.text, '.');
    for (const std::string_view operand : split(text.substr(end), ',')) {
      result.operands.push_back(this->operand(operand, s.line));
    }
    return result;
  }

  int register_index(const std::string& name, int line) const {
    const auto found = registers_.find(name);
    if (found == registers_.end()) fail(line, "unknown register " + name);
    return found->second;
  }

  Operand vector(std::string_view inside, char separator, int line) {
    Operand result{.kind = Kind::kVector};
    for (const std::string_view part : split(inside, separator)) result.parts.push_back(operand(part, line));
    return result;
  }

  Operand operand(std::string_view text, int line) {
    if (text.starts_with('{')) return vector(text.substr(1, text.size() - 2), ',', line);
    if (text.starts_with('[')) return address(trimmed(text.substr(1, text.size() - 2)), line);
    if (text.find('|') != std::string_view::npos) return vector(text, '|', line);
    if (text.starts_with('!')) {
      Operand result = operand(trimmed(text.substr(1)), line);
      result.negated = true;
      return result;
    }
    Operand result{.name = std::string(text)};
    if (text == "_") return result;
    if (const auto found = registers_.find(result.name); found != registers_.end()) {
      result.kind = Kind::kRegister;
      result.index = found->second;
    } else if (text.starts_with('%')) {
      result.kind = Kind::kSpecial;
    } else if (text.starts_with("0f") || text.starts_with("0F") || text.starts_with("0d") || text.starts_with("0D")) {
      result.kind = Kind::kImmediate;
      result.value = std::strtoull(result.name.c_str() + 2, nullptr, 16);
    } else if (std::isdigit(static_cast<unsigned char>(text[0])) != 0 || text[0] == '-') {
      result.kind = Kind::kImmediate;
      result.value = text[0] == '-' ? static_cast<uint64_t>(std::strtoll(result.name.c_str(), nullptr, 0))
                                    : std::strtoull(result.name.c_str(), nullptr, 0);
    } else if (const auto variable = kernel_->variables.find(result.name); variable != kernel_->variables.end()) {
      result.kind = Kind::kVariable;
      result.space = variable->second.space;
      result.value = static_cast<uint64_t>(variable->second.offset);
    } else {
      result.kind = Kind::kLabel;
    }
    return result;
  }

  // register, variable or number, + or - a number
  Operand address(std::string_view text, int line) {
    Operand result{.kind = Kind::kAddress};
    const size_t sign = text.find_first_of("+-", 1);
    result.parts.push_back(operand(trimmed(text.substr(0, sign)), line));
    if (sign != std::string_view::npos) {
      const bool minus = text[sign] == '-';
      const std::string number(trimmed(text.substr(sign + 1)));
      const uint64_t value = static_cast<uint64_t>(std::strtoll(number.c_str(), nullptr, 0));
      result.value = minus ? 0 - value : value;
    }
    return result;
  }

  Module module_;
  Kernel current_;
  Kernel* kernel_ = nullptr;
  int depth_ = 0;
  int64_t shared_bytes_ = 0;
  std::map<std::string, Variable> variables_;  // of the module
  std::map<std::string, int> registers_, labels_;
  std::map<int, std::string> files_;
  struct {
    Place written, inlined;
  } source_;  // of the next instruction
};

}  // namespace

bool Instruction::has(std::string_view word) const {
  return std::find(words.begin(), words.end(), word) != words.end();
}

const Kernel& Module::kernel(const std::string& name) const {
  const auto found = kernels.find(name);
  if (found == kernels.end()) throw Fault("no kernel " + name);
  return found->second;
}

Module parse_module(std::string_view text) { return Parser().parse(text); }

Module read_module(const std::string& path) {
  std::ifstream file(path);
  if (!file) throw Fault("cannot read " + path);
  return parse_module(std::string(std::istreambuf_iterator<char>(file), {}));
}

}  // namespace plimsoll::ptx
