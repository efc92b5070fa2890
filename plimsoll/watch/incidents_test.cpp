#include "plimsoll/watch/incidents.h"

#include <gtest/gtest.h>

#include <limits>
#include <nlohmann/json.hpp>
#include <sstream>

#include "plimsoll/watch/call_site.h"
#include "plimsoll/watch/report.h"

namespace plimsoll::watch {
namespace {

TEST(Incidents, HarmIsWhatTheLastConsumerLeftAndNanStays) {
  Incidents incidents;
  incidents.follow("nobody", Harm::kNanProducing);  // nothing to follow yet
  incidents.add({.path = "pow", .op = "aten::pow"});
  incidents.follow("mul", Harm::kPropagating);
  incidents.follow("tanh", Harm::kAbsorbed);
  EXPECT_EQ(incidents.all().front().harm, Harm::kAbsorbed);
  incidents.add({.path = "wo", .op = "gemm output"});
  incidents.follow("norm", Harm::kNanProducing);
  incidents.follow("q", Harm::kPropagating);
  ASSERT_EQ(incidents.all().size(), 2u);
  EXPECT_EQ(incidents.all()[0].harm, Harm::kAbsorbed);
  EXPECT_EQ(incidents.all()[1].harm, Harm::kNanProducing);
  EXPECT_TRUE(incidents.knows("wo"));
  EXPECT_FALSE(incidents.knows("wi"));
}

TEST(Incidents, HoldTheStepsBeforeThem) {
  Incidents incidents;
  for (int i = 0; i < 20; ++i) incidents.step("op" + std::to_string(i), static_cast<float>(i), 1);
  incidents.add({.path = "wo", .op = "gemm output"});
  const Incident incident = incidents.all().front();
  ASSERT_EQ(incident.before.size(), 6u);
  EXPECT_EQ(incident.before.front().path, "op19");
  EXPECT_EQ(incident.before.back().path, "op14");
  EXPECT_EQ(incidents.next_call("wo"), 0);
  EXPECT_EQ(incidents.next_call("wo"), 1);
}

TEST(Report, SaysEverythingTwice) {
  Session session({.mode = Mode::kShadow});
  session.slots().report("wo/output", {.format = format::Format::kFp16, .amax = 32768});
  session.incidents().add({.path = "block.2.wo",
                           .op = "gemm output",
                           .call = 3,
                           .operands = {{.name = "input", .shape = {4, 8}, .format = format::Format::kFp16, .amax = 9}},
                           .row = 5,
                           .column = 6,
                           .value = 70000,
                           .largest_term = Term{.index = 7, .a = 3, .b = -4}});
  std::ostringstream text, lines;
  write_text(text, session);
  for (const char* part : {"block.2.wo: gemm output, call 3", "row 5, column 6", "input [4, 8] fp16, amax 9",
                           "value there is 70000", "-12 = 3 * -4, at 7", "+1.0 bits", "wo/output"}) {
    EXPECT_NE(text.str().find(part), std::string::npos) << part << "\n" << text.str();
  }
  write_json_lines(lines, session);
  std::istringstream read(lines.str());
  std::string line;
  std::getline(read, line);
  EXPECT_EQ(nlohmann::json::parse(line).at("headroom_bits").get<double>(), session.warnings().front().headroom_bits);
  std::getline(read, line);
  const nlohmann::json incident = nlohmann::json::parse(line);
  EXPECT_EQ(incident.at("incident"), "block.2.wo");
  EXPECT_EQ(incident.at("largest_term").at("product"), -12);
}

TEST(Report, BeginsWithWhatIsNotFinite) {
  Session session;
  const auto report = [&](const char* name, float amax) {
    session.slots().report(name, {.format = format::Format::kFp16, .amax = amax});
  };
  report("calm/output", 1);
  report("near/output", 40000);
  report("of an Inf weight/output", std::numeric_limits<float>::infinity());
  report("and what reads it/output", std::numeric_limits<float>::quiet_NaN());
  std::ostringstream text;
  write_text(text, session);
  EXPECT_EQ(text.str(),
            "watch guard: 0 made Inf or NaN, 2 not finite, 1 more with less than 2 bits of headroom\n"
            "not finite   of an Inf weight/output fp16, not finite in 1 (call 0)\n"
            "not finite   and what reads it/output fp16, not finite in 1 (call 0)\n"
            "+0.7 bits    near/output fp16 amax 40000\n");
}

TEST(Report, SaysRepeatedConsumersAndFramesWithoutANameOnce) {
  Incident incident{.path = "wo", .op = "gemm output"};
  incident.backtrace = {"program+0x1", "program+0x2", "libc.so.6+0x3, start", "other.so+0x4", "program+0x5"};
  incident.consumers = {{"add", Harm::kPropagating}, {"copy", Harm::kAbsorbed}, {"add", Harm::kPropagating}};
  const std::string text = describe(incident);
  const auto ending = text.find("  then");
  ASSERT_NE(ending, std::string::npos);
  EXPECT_EQ(text.substr(ending),
            "  then     add: propagating, 2 times\n"
            "  then     copy: absorbed\n"
            "  called   program: addr2line -Cfpe program 0x1 0x2\n"
            "  called   libc.so.6+0x3, start\n"
            "  called   other.so: addr2line -Cfpe other.so 0x4\n"
            "  called   program: addr2line -Cfpe program 0x5\n");
}

TEST(CallSite, KnowsItsFile) {
  EXPECT_NE(describe_address(reinterpret_cast<uintptr_t>(&describe_address)).find("+0x"), std::string::npos);
  EXPECT_FALSE(backtrace().empty());
}

}  // namespace
}  // namespace plimsoll::watch
