#include "plimsoll/shard/communicator/peers.h"

#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

namespace plimsoll::shard {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kBeat(250);
constexpr int kSilence = 8;  // beats that a rank may miss: a busy machine is not a dead one
// With the thread that looks who is missing, for kSilence beats and what the store's answers take.
constexpr std::chrono::milliseconds kPatience(3500);
constexpr std::chrono::milliseconds kStoreSilence(2000);  // after which the process that holds the store is gone
constexpr std::chrono::milliseconds kPoll(100);
constexpr std::chrono::milliseconds kFarewell(1000);  // in which the others read who is missing
constexpr std::chrono::milliseconds kLastOnes(3000);  // in which the others end, less than kPatience

const char* const kFailure = "failure";
const char* const kEnded = "ended";
const char* const kStoreIsGone =
    "the process that holds the store (rank 0, unless torchrun does) has ended or stands still";
const char* const kNotSaid = "a rank has ended or stands still, and the store answers too slowly to say which";

std::string key(int64_t rank) { return "beats/" + std::to_string(rank); }

std::string sentence(const std::vector<int64_t>& missing) {
  if (missing.empty()) return "";
  std::string ranks;
  for (const int64_t rank : missing) ranks += (ranks.empty() ? "" : ", ") + std::to_string(rank);
  return missing.size() == 1 ? "rank " + ranks + " has ended or stands still"
                             : "ranks " + ranks + " have ended or stand still";
}

}  // namespace

struct Peers::State {
  c10::intrusive_ptr<c10d::Store> store;
  int64_t rank, size;
  bool serves;

  std::mutex mutex;
  std::condition_variable changed;
  bool ending = false, gone = false;  // asked to end; has ended
  bool asked = false;                 // to find who is missing
  std::optional<std::string> found;
  std::string failure;
  Clock::time_point answered = Clock::now();  // the store's last answer

  // c10d waits for an answer without a limit.
  bool store_is_silent() const { return Clock::now() - answered > kStoreSilence; }

  void note_answer() {
    const std::lock_guard lock(mutex);
    answered = Clock::now();
  }

  void note_failure(const std::string& text) {
    if (failure.empty()) failure = text;
    changed.notify_all();
  }

  // Returns when `known()`, when the store does not answer any more, or when `patience` is at its end.
  template <class Known>
  void wait_for(std::unique_lock<std::mutex>& lock, std::chrono::milliseconds patience, Known known) {
    const Clock::time_point limit = Clock::now() + patience;
    while (!known() && !store_is_silent() && Clock::now() < limit) changed.wait_for(lock, kPoll);
  }

  std::vector<int64_t> beats() {
    std::vector<int64_t> counts;
    for (int64_t other = 0; other < size; ++other) {
      counts.push_back(store->add(key(other), 0));
      note_answer();
    }
    return counts;
  }

  // False when this is to end.
  bool beat() {
    store->add(key(rank), 1);
    std::string left;
    if (store->check({kFailure})) {
      const std::vector<uint8_t> text = store->get(kFailure);
      left.assign(text.begin(), text.end());
    }
    std::unique_lock lock(mutex);
    answered = Clock::now();
    if (!left.empty()) note_failure(left);
    changed.wait_for(lock, kBeat, [this] { return ending; });
    return !ending;
  }

  void look() {
    const std::vector<int64_t> before = beats();
    for (int i = 0; i < kSilence; ++i) {
      if (!beat()) return;
    }
    const std::vector<int64_t> after = beats();
    std::vector<int64_t> missing;
    for (size_t i = 0; i < before.size(); ++i) {
      if (after[i] == before[i]) missing.push_back(static_cast<int64_t>(i));
    }
    const std::string text = sentence(missing);
    if (!text.empty()) store->set(kFailure, std::vector<uint8_t>(text.begin(), text.end()));
    const std::lock_guard lock(mutex);
    found = text;
    if (!text.empty()) note_failure(text);
    changed.notify_all();
  }

  bool is_well() {
    const std::lock_guard lock(mutex);
    return failure.empty() && !asked;
  }

  // The process that holds the store ends last, where all is well: c10d's clients print a stack trace where the store
  // is gone.
  void end() {
    store->add(kEnded, 1);
    const Clock::time_point limit = Clock::now() + kLastOnes;
    while (serves && is_well() && Clock::now() < limit && store->add(kEnded, 0) < size) {
      note_answer();
      std::this_thread::sleep_for(kPoll / 10);
    }
  }

  bool wanted() {
    const std::lock_guard lock(mutex);
    return asked && !found && failure.empty();
  }

  void run() {
    try {
      while (beat()) {
        if (wanted()) look();
      }
      end();
    } catch (const std::exception&) {
      const std::lock_guard lock(mutex);
      note_failure(kStoreIsGone);
    }
    const std::lock_guard lock(mutex);
    gone = true;
    changed.notify_all();
  }
};

Peers::Peers(c10::intrusive_ptr<c10d::Store> store, int64_t rank, int64_t size, bool serves)
    : state_(std::make_shared<State>()) {
  store->setTimeout(kStoreSilence);
  state_->store = std::move(store);
  state_->rank = rank;
  state_->size = size;
  state_->serves = serves;
  std::thread([state = state_] { state->run(); }).detach();
}

Peers::~Peers() {
  std::unique_lock lock(state_->mutex);
  state_->ending = true;
  state_->changed.notify_all();
  state_->wait_for(lock, kPatience, [this] { return state_->gone; });
}

std::string Peers::failure() const {
  const std::lock_guard lock(state_->mutex);
  return state_->failure;
}

std::string Peers::find_missing() const {
  std::unique_lock lock(state_->mutex);
  state_->asked = true;
  state_->found.reset();
  state_->wait_for(lock, kPatience, [this] { return state_->found || !state_->failure.empty(); });
  if (state_->failure.empty() && !state_->found) {
    // Word for the other threads of this process, which may wait for the same.
    state_->note_failure(state_->store_is_silent() ? kStoreIsGone : kNotSaid);
  }
  const std::string missing = state_->failure.empty() ? *state_->found : state_->failure;
  lock.unlock();
  if (state_->serves) std::this_thread::sleep_for(kFarewell);
  return missing;
}

}  // namespace plimsoll::shard
