#include "plimsoll/app/t5/mmlu_questions.h"

#include <algorithm>

#include "plimsoll/app/csv.h"
#include "plimsoll/app/error.h"
#include "plimsoll/io/filesystem_errors.h"

namespace plimsoll::app {
namespace {

namespace fs = std::filesystem;

std::vector<MmluQuestion> read_questions(const fs::path& file) {
  std::vector<MmluQuestion> questions;
  for (const std::vector<std::string>& row : read_csv(file)) {
    const size_t number = questions.size() + 1;
    if (row.size() != kMmluLetters.size() + 2) {
      fail("{}: row {}: expected question,A,B,C,D,answer, got {} fields", file.native(), number, row.size());
    }
    const auto letter = std::find(kMmluLetters.begin(), kMmluLetters.end(), row.back());
    if (letter == kMmluLetters.end()) {
      fail("{}: row {}: expected an answer of A, B, C or D, got '{}'", file.native(), number, row.back());
    }
    MmluQuestion question{.question = row.front(), .choices = {}, .answer = 0};
    std::copy(row.begin() + 1, row.end() - 1, question.choices.begin());
    question.answer = static_cast<size_t>(letter - kMmluLetters.begin());
    questions.push_back(std::move(question));
  }
  return questions;
}

std::string asked(const MmluQuestion& question) {
  std::string text = question.question;
  for (size_t i = 0; i < kMmluLetters.size(); ++i) {
    text += std::string("\n") + kMmluLetters[i] + ". " + question.choices[i];
  }
  return text + "\nAnswer:";
}

std::vector<MmluSubject> read_subjects(const fs::path& directory) {
  constexpr std::string_view kEnding = "_test.csv";
  if (!fs::is_directory(directory / "test")) {
    fail("{}: expected test/SUBJECT_test.csv in it, found no test", directory.native());
  }
  std::vector<MmluSubject> subjects;
  for (const fs::directory_entry& entry : fs::directory_iterator(directory / "test")) {
    const std::string file = entry.path().filename().native();
    if (!file.ends_with(kEnding)) continue;
    MmluSubject subject{.name = file.substr(0, file.size() - kEnding.size()), .examples = {}, .questions = {}};
    subject.questions = read_questions(entry.path());
    if (subject.questions.empty()) fail("{}: expected one question or more, got none", entry.path().native());
    const fs::path examples = directory / "dev" / (subject.name + "_dev.csv");
    if (fs::exists(examples)) subject.examples = read_questions(examples);
    subjects.push_back(std::move(subject));
  }
  if (subjects.empty()) fail("{}: expected test/SUBJECT_test.csv in it, found none", directory.native());
  std::sort(subjects.begin(), subjects.end(),
            [](const MmluSubject& a, const MmluSubject& b) { return a.name < b.name; });
  return subjects;
}

}  // namespace

std::vector<MmluSubject> read_mmlu(const fs::path& directory) {
  return io::with_our_errors([&] { return read_subjects(directory); });
}

std::string mmlu_prompt(const std::string& subject, std::span<const MmluQuestion> examples,
                        const MmluQuestion& question) {
  std::string name = subject;
  std::replace(name.begin(), name.end(), '_', ' ');
  std::string prompt = "The following are multiple choice questions (with answers) about " + name + ".\n\n";
  for (const MmluQuestion& example : examples) prompt += asked(example) + " " + kMmluLetters[example.answer] + "\n\n";
  return prompt + asked(question);
}

}  // namespace plimsoll::app
