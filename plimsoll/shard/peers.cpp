#include "plimsoll/shard/peers.h"

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

constexpr std::chrono::milliseconds kBeat(250);
constexpr int kSilence = 8;                           // beats that a rank may miss: a busy machine is not a dead one
constexpr std::chrono::milliseconds kPatience(4000);  // with the thread
constexpr std::chrono::milliseconds kStorePatience(2000);
constexpr std::chrono::milliseconds kFarewell(1000);  // in which the others read who is missing

const char* const kFailure = "failure";
const char* const kStoreIsGone =
    "the process that holds the store (rank 0, unless torchrun does) has ended or stands still";

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

  std::vector<int64_t> beats() const {
    std::vector<int64_t> counts;
    for (int64_t other = 0; other < size; ++other) counts.push_back(store->add(key(other), 0));
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
    if (!left.empty()) failure = left;
    changed.notify_all();
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
    changed.notify_all();
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
    } catch (const std::exception&) {
      const std::lock_guard lock(mutex);
      if (failure.empty()) failure = kStoreIsGone;
    }
    const std::lock_guard lock(mutex);
    gone = true;
    changed.notify_all();
  }
};

Peers::Peers(c10::intrusive_ptr<c10d::Store> store, int64_t rank, int64_t size, bool serves)
    : state_(std::make_shared<State>()) {
  store->setTimeout(kStorePatience);
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
  state_->changed.wait_for(lock, kPatience, [this] { return state_->gone; });
}

std::string Peers::failure() const {
  const std::lock_guard lock(state_->mutex);
  return state_->failure;
}

std::string Peers::find_missing() const {
  std::unique_lock lock(state_->mutex);
  state_->asked = true;
  const auto known = [this] { return state_->found || !state_->failure.empty(); };
  const bool in_time = state_->changed.wait_for(lock, kPatience, known);
  const std::string missing = !in_time ? kStoreIsGone : state_->failure.empty() ? *state_->found : state_->failure;
  lock.unlock();
  if (state_->serves) std::this_thread::sleep_for(kFarewell);
  return missing;
}

}  // namespace plimsoll::shard
