// Machine, library and kernels, as `plimsoll info` reports them.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "plimsoll/runtime/cpu.h"

namespace plimsoll::app {

struct KernelIsa {
  std::string_view kernel;
  runtime::Isa isa;
};

struct MachineInfo {
  std::string cpu;
  runtime::Isa detected;
  runtime::Isa in_force;
  std::string_view amx_refusal;  // why a processor's AMX is not used, if so
  std::vector<KernelIsa> kernels;
  int threads = 0;
  std::string plimsoll_version;
  std::string torch_version;
  std::string compiler;
  std::string cuda;  // what is known of the kernels for CUDA devices
};

MachineInfo machine_info();

}  // namespace plimsoll::app
