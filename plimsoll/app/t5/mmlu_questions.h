// Multiple-choice questions in the files of MMLU (Hendrycks et al. 2021), and the prompts that it asks them with.
#pragma once

#include <array>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

namespace plimsoll::app {

inline constexpr std::array<const char*, 4> kMmluLetters = {"A", "B", "C", "D"};

struct MmluQuestion {
  std::string question;
  std::array<std::string, kMmluLetters.size()> choices;
  size_t answer = 0;  // index of kMmluLetters
};

struct MmluSubject {
  std::string name;  // "high_school_physics"
  std::vector<MmluQuestion> examples, questions;
};

// directory/test/SUBJECT_test.csv, by name, and directory/dev/SUBJECT_dev.csv where there is one: rows of
// question,A,B,C,D,answer. Throws Error that names the file and the row.
std::vector<MmluSubject> read_mmlu(const std::filesystem::path& directory);

// The heading, `examples` with their answers, and the question with "Answer:" at the end.
std::string mmlu_prompt(const std::string& subject, std::span<const MmluQuestion> examples,
                        const MmluQuestion& question);

}  // namespace plimsoll::app
