#include "damage.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <vector>

namespace plimsoll::attack {
namespace {

using nlohmann::json;

template <class List>
const auto& one_of(Random& random, const List& list) {
  return list[random() % list.size()];
}

constexpr std::array<int64_t, 16> kNumbers = {0,
                                              1,
                                              -1,
                                              2,
                                              7,
                                              255,
                                              32768,
                                              1 << 24,
                                              2147483647,
                                              2147483648,
                                              4294967296,
                                              int64_t{1} << 53,
                                              int64_t{1} << 62,
                                              std::numeric_limits<int64_t>::max(),
                                              -2147483648,
                                              std::numeric_limits<int64_t>::min()};
constexpr std::array<double, 9> kDoubles = {0.0, -0.0, 0.5, -1.5, 1e-308, 5e-324, 1e38, 1e308, -1e308};
const std::array<std::string, 12> kTexts = {
    "", "a", std::string(1, '\0'), "../x", "/", ".", "..", std::string(5000, 'a'), "狐", "F32", "{}", "%s%n"};

// The places of all members and elements.
void find_places(const json& value, const json::json_pointer& at, std::vector<json::json_pointer>& places) {
  if (value.is_object()) {
    for (const auto& [key, member] : value.items()) {
      places.push_back(at / key);
      find_places(member, at / key, places);
    }
  } else if (value.is_array()) {
    for (size_t i = 0; i < value.size(); ++i) {
      places.push_back(at / i);
      find_places(value[i], at / i, places);
    }
  }
}

void change(Random& random, json& document, const json::json_pointer& place, const json& other) {
  json& holder = document.at(place.parent_pointer());
  const uint64_t kind = random() % 6;
  if (kind <= 2) {
    document[place] = hostile_value(random);
  } else if (kind == 3) {
    document[place] = other;
  } else if (kind == 4) {
    if (holder.is_object()) {
      holder.erase(place.back());
    } else {
      holder.erase(holder.begin() + std::stol(place.back()));
    }
  } else if (holder.is_object()) {
    holder[one_of(random, kTexts)] = other;
  } else {
    holder.push_back(other);
  }
}

}  // namespace

std::string damage_bytes(Random& random, std::string bytes) {
  constexpr std::array<size_t, 8> kPlaces = {1, 1, 1, 1, 2, 2, 3, 8};
  constexpr std::array<size_t, 6> kSizes = {1, 2, 4, 8, 16, 100};
  constexpr std::string_view kLetters("\x00\x01\x7f\x80\xff\n\",{[", 10);
  for (size_t i = one_of(random, kPlaces); i-- > 0;) {
    const size_t place = random() % (bytes.size() + 1), size = one_of(random, kSizes);
    const size_t held = std::min(size, bytes.size() - place);
    const size_t other = random() % (bytes.size() + 1);
    switch (random() % 8) {
      case 0:
        if (held > 0) bytes[place] = static_cast<char>(bytes[place] ^ 1 << random() % 8);
        break;
      case 1:
        if (held > 0) bytes[place] = one_of(random, kLetters);
        break;
      case 2:
        for (size_t at = place; at < place + held; ++at) bytes[at] = static_cast<char>(random());
        break;
      case 3:
        bytes.erase(place, held);
        break;
      case 4:
        bytes.insert(place, std::string(bytes, place, held));
        break;
      case 5:
        if (random() % 4 == 0) bytes.resize(place);
        break;
      case 6: {
        const int64_t number = one_of(random, kNumbers);
        std::memcpy(bytes.data() + place, &number, std::min(sizeof(number), bytes.size() - place));
        break;
      }
      default:
        bytes.replace(place, held, std::string(bytes, other, size));
    }
  }
  return bytes;
}

json hostile_value(Random& random, int depth) {
  switch (random() % 9) {
    case 0:
    case 1:
      return one_of(random, kNumbers);
    case 2:
      return std::numeric_limits<uint64_t>::max();
    case 3:
      return one_of(random, kDoubles);
    case 4:
      return one_of(random, kTexts);
    case 5:
      return random() % 2 == 0 ? json(nullptr) : json(random() % 2 == 0);
    case 6:
      return json::array();
    case 7: {
      json list = json::array();
      for (size_t i = random() % 4; i-- > 0 && depth < 4;) list.push_back(hostile_value(random, depth + 1));
      return list;
    }
    default: {
      json object = json::object();
      for (size_t i = random() % 3; i-- > 0 && depth < 4;) {
        object[one_of(random, kTexts)] = hostile_value(random, depth + 1);
      }
      return object;
    }
  }
}

json damage_json(Random& random, json document) {
  for (uint64_t i = random() % 4 + 1; i-- > 0;) {
    std::vector<json::json_pointer> places;
    find_places(document, json::json_pointer(), places);
    if (places.empty()) return hostile_value(random);
    const json other = document.at(one_of(random, places));
    change(random, document, one_of(random, places), other);
  }
  return document;
}

}  // namespace plimsoll::attack
