// The limit in t5.py and generate.py: reads as many bytes as a step reads of weights, with nothing in between, on request.
// Protocol on stdin and stdout, one JSON object a line: {"ready": true}, then for each line {"seconds"}, of one pass;
// ends with stdin. The bytes lie on huge pages where the system has them, as packed weights do.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <iostream>
#include <string>

#include "plimsoll/kernels/limits/memory_pass.h"
#include "plimsoll/runtime/pages.h"
#include "plimsoll/runtime/threads.h"

namespace {

using namespace plimsoll;

constexpr int64_t kWord = 64;    // bytes
constexpr int kPasses = 8;       // at each request, as steps follow each other
constexpr int64_t kPage = 4096;  // words of a part that a thread takes

void pass(const char* memory, int64_t bytes) {
  const int64_t words = bytes / kWord;
  runtime::parallel_for(words, kPage, [&](int64_t begin, int64_t end) {
    kernels::read_memory(memory + begin * kWord, (end - begin) * kWord);
  });
}

}  // namespace

int main(int argc, char** argv) {
  int64_t bytes = 0;
  int threads = 2;
  CLI::App command("Reads memory, on request");
  command.add_option("--bytes", bytes)->required();
  command.add_option("--threads", threads);
  CLI11_PARSE(command, argc, argv);
  runtime::set_threads(threads);
  const auto size = static_cast<size_t>(bytes);
  auto* memory = static_cast<char*>(runtime::map_pages(size));
  if (memory == nullptr) {
    std::cerr << "read_worker: expected " << bytes << " bytes of memory, got none\n";
    return 1;
  }
  std::fill_n(memory, size, 1);
  pass(memory, bytes);
  std::cout << "{\"ready\": true}" << std::endl;
  for (std::string line; std::getline(std::cin, line);) {
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < kPasses; ++i) pass(memory, bytes);
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    std::cout << "{\"seconds\": " << seconds.count() / kPasses << "}" << std::endl;
  }
  return 0;
}
