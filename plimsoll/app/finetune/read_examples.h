// Examples in files: of FILE.jsonl and FILE.json each line is one, {"messages": [{"role", "content"}...]}, {"prompt",
// "completion"} or {"text"}; any other file is a text. Directories are searched.
#pragma once

#include <array>
#include <filesystem>
#include <vector>

#include "plimsoll/app/text/encode_example.h"
#include "plimsoll/recipe/named.h"

namespace plimsoll::app {

// Fate of an example of more tokens than the context.
enum class Overlong : uint8_t { kCut, kSkip, kError };

inline constexpr std::array<recipe::Named<Overlong>, 3> kOverlongs = {
    {{"cut", Overlong::kCut}, {"skip", Overlong::kSkip}, {"error", Overlong::kError}}};
inline constexpr std::array<recipe::Named<TrainOn>, 2> kTrainOns = {
    {{"assistant", TrainOn::kAssistant}, {"all", TrainOn::kAll}}};

struct ReadExamples {
  std::vector<std::filesystem::path> data;
  std::filesystem::path model;  // directory with the chat template
  int64_t context = 0;          // tokens of an example at most
  TrainOn train_on = TrainOn::kAssistant;
  Overlong overlong = Overlong::kCut;
};

// In the order of the files and their lines. The text of a file is cut into examples as long as the context, which
// follow one another without a gap. Throws io::Error for the first line that is no example: FILE:LINE, expected, got.
Examples read_examples(const ReadExamples& input, const tokenize::Tokenizer& tokenizer);

}  // namespace plimsoll::app
