#include "plimsoll/tokenize/json/pattern.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <array>
#include <chrono>
#include <ctime>

#include "plimsoll/io/error.h"
#include "plimsoll/tokenize/json/pattern_syntax.h"
#include "plimsoll/tokenize/utf8.h"

namespace plimsoll::tokenize {
namespace {

constexpr size_t kMaxPatternBytes = 8192;      // the longest in use has about 500
constexpr uint32_t kMaxSteps = 10'000'000;     // of one attempt; a run of spaces takes about one a character
constexpr uint32_t kMaxHeapKibibytes = 65536;  // of one attempt
constexpr size_t kJitStackBytes = size_t{1} << 23;
constexpr size_t kStartsInOneCall = 256;  // between two looks at the clock

template <class T, void (*release)(T*)>
struct Release {
  void operator()(T* pointer) const { release(pointer); }
};
template <class T, void (*release)(T*)>
using Owned = std::unique_ptr<T, Release<T, release>>;
using CompileContext = Owned<pcre2_compile_context, pcre2_compile_context_free>;
using MatchContext = Owned<pcre2_match_context, pcre2_match_context_free>;
using MatchData = Owned<pcre2_match_data, pcre2_match_data_free>;
using JitStack = Owned<pcre2_jit_stack, pcre2_jit_stack_free>;
using Code = Owned<pcre2_code, pcre2_code_free>;

PCRE2_SPTR bytes_of(std::string_view text) { return reinterpret_cast<PCRE2_SPTR>(text.data()); }

double thread_seconds() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

// A hundred times what a real pattern takes, and a second.
double seconds_for(size_t bytes) { return 1 + 2e-6 * static_cast<double>(bytes); }

}  // namespace

PatternTime::PatternTime(size_t bytes)
    : limit_(seconds_for(bytes)), begin_(std::chrono::steady_clock::now()), processor_begin_(thread_seconds()) {}

void PatternTime::look(const std::string& name) const {
  // Less has passed on the processor than on the wall, which is cheaper to ask.
  const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - begin_;
  if (passed.count() < limit_ || thread_seconds() - processor_begin_ < limit_) return;
  io::fail("{}: expected patterns that take at most {:.1f} s for this text, got slower ones", name, limit_);
}

struct Pattern::Expression {
  Code code;
  std::string name;
};

namespace {

// One call after another for one text.
class Search {
 public:
  Search(const Pattern::Expression& expression, std::string_view text, PatternTime& time)
      : expression_(expression),
        text_(text),
        time_(time),
        context_(pcre2_match_context_create(nullptr)),
        data_(pcre2_match_data_create(1, nullptr)) {
    if (!context_ || !data_) throw std::bad_alloc();
    pcre2_set_match_limit(context_.get(), kMaxSteps);
    pcre2_set_heap_limit(context_.get(), kMaxHeapKibibytes);
    pcre2_set_depth_limit(context_.get(), kMaxSteps);
  }

  // The next match that begins at `from` or later.
  bool next(size_t from, Range& match) {
    for (size_t start = from;; start += kStartsInOneCall) {
      time_.check(expression_.name);
      while (start < text_.size() && start > from && (static_cast<unsigned char>(text_[start]) & 0xC0) == 0x80) ++start;
      if (start > text_.size()) return false;
      pcre2_set_offset_limit(context_.get(), start + kStartsInOneCall - 1);
      const int result = call(start);
      if (result >= 0) {
        const PCRE2_SIZE* bounds = pcre2_get_ovector_pointer(data_.get());
        match = {bounds[0], bounds[1]};
        return true;
      }
      if (result != PCRE2_ERROR_NOMATCH) fail_for(result);
    }
  }

 private:
  // The text was found to be UTF-8 before.
  int call(size_t start) {
    const auto run = [&] {
      return pcre2_match(expression_.code.get(), bytes_of(text_), text_.size(), start, PCRE2_NO_UTF_CHECK, data_.get(),
                         context_.get());
    };
    const int result = run();
    if (result != PCRE2_ERROR_JIT_STACKLIMIT || stack_) return result;
    stack_.reset(pcre2_jit_stack_create(size_t{1} << 15, kJitStackBytes, nullptr));
    if (!stack_) throw std::bad_alloc();
    pcre2_jit_stack_assign(context_.get(), nullptr, stack_.get());
    return run();
  }

  [[noreturn]] void fail_for(int result) const {
    std::array<PCRE2_UCHAR, 256> message{};
    pcre2_get_error_message(result, message.data(), message.size());
    io::fail("{}: expected a pattern that matches within its limits, got: {}", expression_.name,
             reinterpret_cast<const char*>(message.data()));
  }

  const Pattern::Expression& expression_;
  std::string_view text_;
  PatternTime& time_;
  MatchContext context_;
  MatchData data_;
  JitStack stack_;
};

}  // namespace

Pattern Pattern::literal(std::string text, const std::string& name) {
  if (text.empty()) io::fail("{}: expected a text that is not empty", name);
  Pattern pattern;
  pattern.literal_ = std::move(text);
  return pattern;
}

Pattern Pattern::regular(const std::string& expression, const std::string& name) {
  if (expression.size() > kMaxPatternBytes) {
    io::fail("{}: expected an expression of at most {} bytes, got {}", name, kMaxPatternBytes, expression.size());
  }
  const std::string rewritten = to_pcre2_syntax(expression, name);
  const CompileContext context(pcre2_compile_context_create(nullptr));
  if (!context) throw std::bad_alloc();
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  int error = 0;
  PCRE2_SIZE place = 0;
  const uint32_t options = PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C | PCRE2_USE_OFFSET_LIMIT |
                           PCRE2_NO_AUTO_CAPTURE;
  const auto compiled = std::make_shared<Expression>();
  compiled->name = name;
  compiled->code.reset(pcre2_compile(bytes_of(rewritten), rewritten.size(), options, &error, &place, context.get()));
  if (!compiled->code) {
    std::array<PCRE2_UCHAR, 256> message{};
    pcre2_get_error_message(error, message.data(), message.size());
    io::fail("{}: expected a regular expression, got: {}", name, reinterpret_cast<const char*>(message.data()));
  }
  pcre2_jit_compile(compiled->code.get(), PCRE2_JIT_COMPLETE);  // without it, pcre2_match interprets
  Pattern pattern;
  pattern.expression_ = compiled;
  return pattern;
}

void Pattern::find(std::string_view text, std::vector<Range>& matches, PatternTime& time) const {
  if (!literal_.empty()) {
    for (size_t place = text.find(literal_); place != text.npos; place = text.find(literal_, place)) {
      matches.push_back({place, place + literal_.size()});
      place += literal_.size();
    }
    return;
  }
  Search search(*expression_, text, time);
  size_t from = 0, last_end = text.size() + 1;
  Range match{};
  while (from <= text.size() && search.next(from, match)) {
    if (match.begin == match.end && match.end == last_end) {
      from = match.end + (match.end < text.size() ? character_at(text, match.end).bytes : 1);
      continue;
    }
    matches.push_back(match);
    from = last_end = match.end;
  }
}

}  // namespace plimsoll::tokenize
