#include "plimsoll/watch/slots.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

namespace plimsoll::watch {

double headroom_bits(const Observation& observation) {
  if (!std::isfinite(observation.amax)) return std::numeric_limits<double>::quiet_NaN();
  const double largest = double{observation.amax} * double{observation.inv_scale};
  return std::log2(double{format::max_finite(observation.format)} / largest);
}

bool overflows(const Observation& observation) {
  if (!std::isfinite(observation.amax)) return true;
  if (observation.format != format::Format::kFp16 && observation.format != format::Format::kBf16) return false;
  const format::FormatInfo& info = format::info(observation.format);
  const double unit = std::ldexp(1.0, std::ilogb(info.max_finite) - info.mantissa_bits);
  return double{observation.amax} * double{observation.inv_scale} >= double{info.max_finite} + unit / 2;
}

int64_t Slots::Registry::add(std::string_view name, const Observation& observation) {
  const bool finite = std::isfinite(observation.amax);
  const int64_t non_finite = std::max<int64_t>(observation.non_finite, overflows(observation) ? 1 : 0);
  auto found = slots.find(name);
  if (found == slots.end()) {
    found = slots.emplace(std::string(name), Record{}).first;
    found->second.name = name;
  }
  Record& record = found->second;
  record.format = observation.format;
  record.inv_scale = observation.inv_scale;
  if (finite) record.amax = std::max(record.amax, observation.amax);
  record.headroom_bits = std::fmin(record.headroom_bits, headroom_bits(observation));  // the other, if one is NaN
  if (non_finite > 0 && record.non_finite == 0) {
    record.first_non_finite_call = record.calls;
    record.first_non_finite_at = observations;
  }
  record.non_finite += non_finite;
  ++observations;
  return record.calls++;
}

void Slots::Registry::read_unread() {
  if (unread == nullptr) return;
  for (const NamedObservation& each : unread->read()) add(each.name, each.observation);
}

int64_t Slots::report(std::string_view name, const Observation& observation) {
  const std::lock_guard lock(mutex_);
  registry_.read_unread();
  return registry_.add(name, observation);
}

Unread& Slots::unread(const std::function<std::unique_ptr<Unread>()>& make) {
  const std::lock_guard lock(mutex_);
  if (registry_.unread == nullptr) registry_.unread = make();
  return *registry_.unread;
}

void Slots::read_unread() const {
  const std::lock_guard lock(mutex_);
  registry_.read_unread();
}

void Slots::count(std::string_view name, const Counts& counts) {
  const std::lock_guard lock(mutex_);
  registry_.read_unread();
  const auto found = registry_.slots.find(name);
  if (found != registry_.slots.end()) found->second.counts += counts;
}

std::vector<Record> Slots::records() const {
  std::vector<Record> all;
  {
    const std::lock_guard lock(mutex_);
    registry_.read_unread();
    for (const auto& [name, record] : registry_.slots) all.push_back(record);
  }
  std::sort(all.begin(), all.end(), [](const Record& a, const Record& b) { return a.name < b.name; });
  return all;
}

bool is_worse(const Record& a, const Record& b) {
  if (a.non_finite > 0 && b.non_finite > 0) return a.first_non_finite_at < b.first_non_finite_at;
  if (a.non_finite > 0 || b.non_finite > 0) return a.non_finite > 0;
  return a.headroom_bits < b.headroom_bits;
}

std::vector<Record> Slots::worst(size_t count) const {
  std::vector<Record> all = records();
  std::stable_sort(all.begin(), all.end(), is_worse);
  all.resize(std::min(count, all.size()));
  return all;
}

std::vector<Record> Slots::non_finite() const {
  std::vector<Record> all = records();
  std::erase_if(all, [](const Record& record) { return record.non_finite == 0; });
  std::sort(all.begin(), all.end(), is_worse);
  return all;
}

void Slots::clear() {
  const std::lock_guard lock(mutex_);
  registry_.read_unread();
  registry_.slots.clear();
  registry_.observations = 0;
}

void write_json_lines(std::ostream& out, const std::vector<Record>& records) {
  for (const Record& record : records) {
    nlohmann::ordered_json line;  // a number that is not finite is written as null
    line["name"] = record.name;
    line["format"] = format::info(record.format).name;
    line["calls"] = record.calls;
    line["amax"] = std::isnan(record.headroom_bits) ? std::numeric_limits<float>::quiet_NaN() : record.amax;
    line["headroom_bits"] = record.headroom_bits;
    line["non_finite"] = record.non_finite;
    line["first_non_finite_call"] = record.first_non_finite_call;
    if (const Counts& counts = record.counts; counts.elements > 0) {
      line["counted"] = counts.elements;
      line["overflowed"] = counts.overflowed;
      line["flushed"] = counts.flushed;
      line["subnormal"] = counts.subnormal;
      line["underflow_share"] = counts.underflow_share();
      line["underflow_mass_share"] = counts.underflow_mass_share();
    }
    out << line.dump() << '\n';
  }
}

}  // namespace plimsoll::watch
