#include "plimsoll/watch/call_site.h"

#include <cxxabi.h>
#include <dlfcn.h>
#include <execinfo.h>
#include <fmt/format.h>

#include <array>
#include <cstdlib>
#include <memory>
#include <string_view>

namespace plimsoll::watch {
namespace {

constexpr int kFrames = 40;

std::string demangled(const char* symbol) {
  int status = 0;
  const std::unique_ptr<char, decltype(&std::free)> name(abi::__cxa_demangle(symbol, nullptr, nullptr, &status),
                                                         &std::free);
  return status == 0 ? name.get() : symbol;
}

}  // namespace

std::string describe_address(uintptr_t address) {
  Dl_info info = {};
  if (dladdr(reinterpret_cast<const void*>(address), &info) == 0) return fmt::format("{:#x}", address);
  const std::string_view path = info.dli_fname;
  const std::string where =
      fmt::format("{}+{:#x}", path.substr(path.rfind('/') + 1), address - reinterpret_cast<uintptr_t>(info.dli_fbase));
  return info.dli_sname == nullptr ? where : fmt::format("{}, {}", where, demangled(info.dli_sname));
}

std::vector<std::string> backtrace() {
  std::array<void*, kFrames> frames{};
  const int count = ::backtrace(frames.data(), kFrames);
  std::vector<std::string> lines;
  for (int i = 1; i < count; ++i) {
    std::string line = describe_address(reinterpret_cast<uintptr_t>(frames[static_cast<size_t>(i)]));
    if (line.find("plimsoll::watch::") == line.npos) lines.push_back(std::move(line));
  }
  return lines;
}

}  // namespace plimsoll::watch
