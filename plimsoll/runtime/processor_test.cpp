#include "plimsoll/runtime/processor.h"

#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <string>

#include "plimsoll/runtime/vector_width.h"

namespace plimsoll::runtime {
namespace {

// The first processor's rows of /proc/cpuinfo, by name.
std::map<std::string, std::string> cpu_information() {
  std::map<std::string, std::string> rows;
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line) && !line.empty();) {
    const size_t colon = line.find(':');
    if (colon != std::string::npos && colon + 2 <= line.size())
      rows[line.substr(0, line.find_last_not_of(" \t", colon - 1) + 1)] = line.substr(colon + 2);
  }
  return rows;
}

TEST(Processor, IsTheOneThatLinuxNames) {
  auto rows = cpu_information();
  if (!rows.contains("cpu family")) GTEST_SKIP() << "no /proc/cpuinfo of an x86 processor";
  const Processor here = processor();
  EXPECT_EQ(here.vendor == Processor::Vendor::kAmd, rows["vendor_id"] == "AuthenticAMD");
  EXPECT_EQ(here.vendor == Processor::Vendor::kIntel, rows["vendor_id"] == "GenuineIntel");
  EXPECT_EQ(std::to_string(here.family), rows["cpu family"]);
  EXPECT_EQ(std::to_string(here.model), rows["model"]);
}

TEST(VectorWidth, IsSplitOnTheAmdFamilyThatLinuxNames) {
  auto rows = cpu_information();
  if (!rows.contains("cpu family")) GTEST_SKIP() << "no /proc/cpuinfo of an x86 processor";
  const bool is_zen4 = rows["vendor_id"] == "AuthenticAMD" && rows["cpu family"] == "25" &&
                       rows["flags"].find(" avx512f ") != std::string::npos;
  EXPECT_EQ(splits_512_bits(), is_zen4);
}

}  // namespace
}  // namespace plimsoll::runtime
