#include "plimsoll/watch/audit.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

namespace plimsoll::watch {
namespace {

AuditRow product(const std::string& layer, double operations) {
  return {
      .layer = layer,
      .op = "gemm output",
      .operands = {{.name = "input", .format = "e4m3", .granularity = "tensor", .source = "delayed", .scale = "fp32"},
                   {.name = "weight", .format = "bf16", .values_of = "e4m3"}},
      .output = "bf16",
      .kernel = "fp32 avx2",
      .decided = "recipe",
      .operations = operations};
}

TEST(Audit, NobodyRecordsWithoutARecordingOrInsideOneOfNobody) {
  Audit audit;
  EXPECT_EQ(auditing(), nullptr);
  {
    const AuditRecording recording(&audit);
    EXPECT_EQ(auditing(), &audit);
    const AuditRecording quiet(nullptr);
    audit_operator({.op = "norm", .input = format::Format::kFp32, .output = format::Format::kBf16});
    std::thread([] { EXPECT_EQ(auditing(), nullptr); }).join();
  }
  EXPECT_EQ(auditing(), nullptr);
  EXPECT_TRUE(audit.rows().empty());
}

TEST(Audit, EqualCallsAreOneRowAndAnyOtherMemberMakesAnother) {
  Audit audit;
  audit.add(product("a", 10));
  audit.add(product("a", 30));
  AuditRow other = product("a", 2);
  other.operands[1].values_of = "e5m2";
  audit.add(other);
  audit.add(product("b", 8));
  const std::vector<AuditRow> rows = audit.rows();
  ASSERT_EQ(rows.size(), 3u);
  EXPECT_EQ(rows[0].calls, 2);
  EXPECT_EQ(rows[0].operations, 40);
  EXPECT_EQ(rows[1].calls, 1);
  EXPECT_EQ(rows[2].layer, "b");
  EXPECT_EQ(audit.operations(), 50);
  EXPECT_EQ(audit.calls(), 4);
}

TEST(Audit, OperatorsHaveThePathOfTheInnermostModuleUnlessTheirRowHasOne) {
  Audit audit;
  const AuditRecording recording(&audit);
  const auto norm = [] {
    audit_operator({.op = "norm", .input = format::Format::kFp32, .output = format::Format::kBf16});
  };
  norm();
  {
    const AuditedLayer outer("block"), inner("block.attention"), unnamed("");
    EXPECT_EQ(audit.module(), "block.attention");
    norm();
    audit.add(product("head", 1));
  }
  norm();
  const std::vector<AuditRow> rows = audit.rows();
  ASSERT_EQ(rows.size(), 3u);
  EXPECT_EQ(rows[0].layer, "");
  EXPECT_EQ(rows[0].calls, 2);
  EXPECT_EQ(rows[1].layer, "block.attention");
  EXPECT_EQ(rows[2].layer, "head");
}

TEST(Audit, LayerDefinedInHighPrecisionSaysSo) {
  Audit audit;
  audit.explain_layer("head", "because");
  AuditRow row = product("head", 1);
  audit.add(row);
  row.decided = "dtype";
  audit.add(row);
  ASSERT_EQ(audit.rows().size(), 2u);
  EXPECT_EQ(audit.rows()[0].decided, "recipe");
  EXPECT_EQ(audit.rows()[1].decided, "layer");
  EXPECT_EQ(audit.rows()[1].reason, "because");
}

TEST(Audit, RowsOfARunHaveItsNameAndItsShares) {
  const AuditedRun of_nobody("fp8");
  Audit audit;
  const AuditRecording recording(&audit);
  audit.add(product("a", 1));
  {
    const AuditedRun run("fp8");
    audit.add(product("a", 3));
    audit.add(product("b", 1));
    const AuditedRun inner("again");
    audit.add(product("a", 5));
  }
  {
    const AuditedRun run("fp8");
    audit.add(product("a", 2));
  }
  const std::vector<AuditRow> rows = audit.rows();
  ASSERT_EQ(rows.size(), 4u);
  std::stringstream out;
  write_json_lines(out, audit);
  std::vector<nlohmann::json> lines;
  for (std::string line; std::getline(out, line);) lines.push_back(nlohmann::json::parse(line));
  const std::vector<std::string> runs = {"", "fp8", "fp8", "fp8 again"};
  const std::vector<int64_t> calls = {1, 2, 1, 1};
  const std::vector<double> shares = {1, 5.0 / 6, 1.0 / 6, 1};
  for (size_t i = 0; i < rows.size(); ++i) {
    EXPECT_EQ(rows[i].run, runs[i]);
    EXPECT_EQ(lines[i].value("run", ""), runs[i]);
    EXPECT_EQ(lines[i].contains("run"), !runs[i].empty());
    EXPECT_EQ(lines[i]["calls"], calls[i]);
    EXPECT_EQ(lines[i]["share"], shares[i]);
  }
}

TEST(Audit, ExplanationsAreOfTheirRun) {
  Audit audit;
  const AuditRecording recording(&audit);
  AuditRow row = product("head", 1);
  row.decided = "dtype";
  {
    const AuditedRun run("fp8");
    audit.explain_layer("head", "because");
    audit.add(row);
  }
  const AuditedRun run("bf16");
  audit.add(row);
  ASSERT_EQ(audit.rows().size(), 2u);
  EXPECT_EQ(audit.rows()[0].decided, "layer");
  EXPECT_EQ(audit.rows()[1].decided, "dtype");
  EXPECT_EQ(audit.rows()[1].reason, "");
}

TEST(Audit, LinesHaveEveryMemberAndSharesThatAddUpToOne) {
  Audit audit;
  audit.add(product("a", 3));
  audit.add(product("b", 1));
  std::stringstream out;
  write_json_lines(out, audit);
  std::vector<nlohmann::json> lines;
  for (std::string line; std::getline(out, line);) lines.push_back(nlohmann::json::parse(line));
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_EQ(lines[0], nlohmann::json::parse(R"({"layer": "a", "op": "gemm output", "operands": [
                {"name": "input", "format": "e4m3", "granularity": "tensor", "source": "delayed", "scale": "fp32"},
                {"name": "weight", "format": "bf16", "values_of": "e4m3"}], "output": "bf16", "kernel": "fp32 avx2",
                "decided": "recipe", "reason": "", "calls": 1, "operations": 3.0, "share": 0.75})"));
  EXPECT_EQ(lines[1]["share"], 0.25);
}

}  // namespace
}  // namespace plimsoll::watch
