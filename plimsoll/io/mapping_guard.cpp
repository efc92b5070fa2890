#include "plimsoll/io/mapping_guard.h"

#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <mutex>

#include "plimsoll/io/error.h"
#include "plimsoll/runtime/signal_before.h"

namespace plimsoll::io {
namespace {

// A mapping, or none while `end` is 0. Records are never freed, so that the handler may walk the list at any time.
struct MappingRecord {
  std::atomic<uintptr_t> begin = 0, end = 0;
  std::atomic<bool> lost = false;
  std::string name;  // written while `end` is 0
  MappingRecord* next = nullptr;
};

std::atomic<MappingRecord*> first_record = nullptr;
std::atomic<int64_t> lost_mappings = 0;
std::atomic<bool> tells = false;
std::mutex records_mutex;  // of guard_mapping() and forget_mapping()
struct sigaction bus_handler_before = {};
uintptr_t page_bytes = 4096;

MappingRecord* record_of(uintptr_t address) {
  for (MappingRecord* record = first_record.load(); record != nullptr; record = record->next) {
    if (address >= record->begin.load() && address < record->end.load()) return record;
  }
  return nullptr;
}

// write() alone may be called in a handler.
void tell(const MappingRecord& record) {
  const auto say = [](const char* text) {
    if (::write(STDERR_FILENO, text, std::strlen(text)) < 0) return;
  };
  say("plimsoll: ");
  say(record.name.c_str());
  say(": expected the bytes that it had when it was opened, got none (shortened by another process?)\n");
}

// Zeros for the rest of the mapping, so that the interrupted read goes on.
bool replace_lost_bytes(MappingRecord& record, uintptr_t address) {
  const uintptr_t page = address / page_bytes * page_bytes;
  void* const zeros = ::mmap(reinterpret_cast<void*>(page), record.end.load() - page, PROT_READ | PROT_WRITE,
                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0);
  if (zeros == MAP_FAILED) return false;
  if (!record.lost.exchange(true)) {
    ++lost_mappings;
    if (tells) tell(record);
  }
  return true;
}

void on_bus_error(int signal, siginfo_t* info, void* context) {
  const int error = errno;
  const bool has_address = info->si_code == BUS_ADRERR;
  MappingRecord* const record = has_address ? record_of(reinterpret_cast<uintptr_t>(info->si_addr)) : nullptr;
  if (record != nullptr && replace_lost_bytes(*record, reinterpret_cast<uintptr_t>(info->si_addr))) {
    errno = error;
    return;
  }
  runtime::pass_to_handler_before(bus_handler_before, signal, info, context);
}

// Once: a handler that is put in later, by whomever, stays in front of this one.
void install_handler() {
  page_bytes = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  struct sigaction action = {};
  action.sa_sigaction = on_bus_error;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  ::sigaction(SIGBUS, &action, &bus_handler_before);
}

MappingRecord& free_record() {
  for (MappingRecord* record = first_record.load(); record != nullptr; record = record->next) {
    if (record->end.load() == 0) return *record;
  }
  auto* record = new MappingRecord;
  record->next = first_record.load();
  first_record = record;
  return *record;
}

}  // namespace

void guard_mapping(std::span<const std::byte> memory, const std::string& name) {
  static std::once_flag installed;
  std::call_once(installed, install_handler);
  const std::lock_guard lock(records_mutex);
  MappingRecord& record = free_record();
  const auto begin = reinterpret_cast<uintptr_t>(memory.data());
  record.name = name;
  record.begin = begin;
  record.end = (begin + memory.size() + page_bytes - 1) / page_bytes * page_bytes;
}

void forget_mapping(std::span<const std::byte> memory) {
  const std::lock_guard lock(records_mutex);
  MappingRecord* const record = record_of(reinterpret_cast<uintptr_t>(memory.data()));
  if (record == nullptr) return;
  record->end = 0;
  if (record->lost.exchange(false)) --lost_mappings;
}

void check_mapped_files() {
  if (lost_mappings.load() == 0) return;
  const std::lock_guard lock(records_mutex);
  for (const MappingRecord* record = first_record.load(); record != nullptr; record = record->next) {
    if (!record->lost.load()) continue;
    fail("{}: expected the bytes that it had when it was opened, got none (shortened by another process?)",
         record->name);
  }
}

void check_before_system_reads(std::span<const std::byte> bytes) {
  if (bytes.empty() || record_of(reinterpret_cast<uintptr_t>(bytes.data())) == nullptr) return;
  const volatile std::byte* const places = bytes.data();
  std::byte seen = places[bytes.size() - 1];
  for (size_t place = 0; place < bytes.size(); place += page_bytes) seen |= places[place];
  static_cast<void>(seen);
  check_mapped_files();
}

void tell_lost_bytes_on_stderr() { tells = true; }

}  // namespace plimsoll::io
