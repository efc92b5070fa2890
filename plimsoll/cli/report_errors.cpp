#include "plimsoll/cli/report_errors.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <cstdio>
#include <exception>
#include <new>
#include <string_view>

#include "plimsoll/app/error.h"
#include "plimsoll/cli/command.h"
#include "plimsoll/cli/output.h"
#include "plimsoll/io/mapping_guard.h"

namespace plimsoll::cli {
namespace {

int report(std::string_view text, int exit_code) {
  fmt::print(stderr, "plimsoll: {}\n", text.substr(0, text.find('\n')));
  return exit_code;
}

}  // namespace

int report_errors(const std::function<int()>& body) {
  try {
    const int exit_code = body();
    io::check_mapped_files();
    expect_all_written();
    return exit_code;
  } catch (const app::UsageError& error) {
    return report(error.what(), kExitUsage);
  } catch (const app::NotFinite& error) {
    return report(error.what(), kExitNotFinite);
  } catch (const app::Interrupted& error) {
    return report(error.what(), kExitInterrupted);
  } catch (const c10::Error& error) {
    return report(error.what_without_backtrace(), kExitFailed);
  } catch (const std::bad_alloc&) {
    return report("expected enough memory, got none from the system", kExitFailed);
  } catch (const std::exception& error) {
    return report(error.what(), kExitFailed);
  }
}

void print_warning(const std::string& text) { report("warning: " + text, kExitOk); }

}  // namespace plimsoll::cli
