#include "plimsoll/cli/show_data.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <string>

#include "plimsoll/app/finetune/finetune_data.h"
#include "plimsoll/app/json_lines.h"
#include "plimsoll/cli/output.h"

namespace plimsoll::cli {
namespace {

struct Marks {
  const char *begin, *end;
};

Marks marks() {
  const char* no_color = std::getenv("NO_COLOR");
  const bool is_plain = (no_color != nullptr && *no_color != '\0') || isatty(STDOUT_FILENO) == 0;
  return is_plain ? Marks{"[[", "]]"} : Marks{"\x1b[32m", "\x1b[0m"};
}

// The text of the example, with marks around runs of tokens that count.
std::string marked(const app::Example& example, const tokenize::Tokenizer& tokenizer, const Marks& marks) {
  const std::vector<int64_t> ids(example.tokens.begin(), example.tokens.end());
  std::string text;
  size_t shown = 0;  // bytes of the decoded text
  for (size_t begin = 0; begin < ids.size();) {
    size_t end = begin + 1;
    while (end < ids.size() && example.counts[end] == example.counts[begin]) ++end;
    // Decoded from the first token on: what a token spells may depend on those before it.
    const std::string decoded = tokenizer.decode({ids.data(), end}, tokenize::Specials::kWith);
    const std::string run = harmless(decoded.substr(std::min(shown, decoded.size())));
    text += example.counts[begin] != 0 ? marks.begin + run + marks.end : run;
    shown = decoded.size();
    begin = end;
  }
  return text;
}

}  // namespace

void show_data(const app::FinetuneOptions& options) {
  const auto tokenizer = app::tokenizer_of(options);
  const app::FinetuneData data = app::read_finetune_data(options, *tokenizer);
  app::JsonLines lines = app::JsonLines::create(options.run.json);
  for (const app::Example* example : data.examples->first(static_cast<size_t>(options.show_data))) {
    write_line(fmt::format("{}: {}, {} count", example->place, counted(std::ssize(example->tokens), "token"),
                           example->counted()));
    write_line(marked(*example, *tokenizer, marks()));
    lines.write({{"place", example->place}, {"tokens", example->tokens}, {"counts", example->counts}});
  }
  write_line(fmt::format("examples: {} to train on, {} held out; {} cut, {} skipped", data.training, data.held_out,
                         data.cut, data.skipped));
}

}  // namespace plimsoll::cli
