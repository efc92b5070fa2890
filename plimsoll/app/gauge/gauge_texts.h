// Texts that a decoder-only model is gauged on, as ids.
#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

namespace plimsoll::app {

struct GaugeTexts {
  std::filesystem::path file;  // a text a line, or *.jsonl
  // The model's, with its tokenizer and its chat template, which are read where they are needed.
  std::filesystem::path directory;
  int64_t vocabulary = 0;
};

// Texts of one token or more, at least one. A line of *.jsonl is an object with input_ids, or one that fine-tuning reads
// (ExampleEncoder::object), all of whose tokens are taken. Throws Error or io::Error, which names the file and the line.
std::vector<std::vector<int64_t>> read_gauge_texts(const GaugeTexts& texts);

}  // namespace plimsoll::app
