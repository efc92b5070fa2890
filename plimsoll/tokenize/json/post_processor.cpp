#include "plimsoll/tokenize/json/post_processor.h"

#include "plimsoll/io/error.h"
#include "plimsoll/tokenize/fields.h"

namespace plimsoll::tokenize {
namespace {

std::vector<int64_t> read_ids(const Fields& step, const std::string& token, int64_t vocabulary) {
  std::vector<int64_t> ids;
  step.object("special_tokens").object(token).for_each("ids", [&](const nlohmann::json& id, const std::string& name) {
    if (!id.is_number_unsigned() || id.get<uint64_t>() >= static_cast<uint64_t>(vocabulary)) {
      io::fail("{}: expected an id of the vocabulary, from 0 to {}, got {}", name, vocabulary - 1, shown(id));
    }
    ids.push_back(id.get<int64_t>());
  });
  return ids;
}

// The tokens that one template puts before and after sequence A.
void read_template(const Fields& step, int64_t vocabulary, std::vector<int64_t>& before, std::vector<int64_t>& after) {
  bool found = false;
  step.for_each("single", [&](const nlohmann::json& element, const std::string& name) {
    const Fields fields(element, name);
    if (fields.at("SpecialToken").is_object()) {
      const std::vector<int64_t> ids = read_ids(step, fields.object("SpecialToken").text("id"), vocabulary);
      auto& side = found ? after : before;
      side.insert(side.end(), ids.begin(), ids.end());
      return;
    }
    if (found || fields.object("Sequence").text("id") != "A")
      io::fail("{}: expected special tokens and sequence A once", name);
    found = true;
  });
  if (!found) step.refuse("single", "a template with sequence A");
}

}  // namespace

PostProcessor::PostProcessor(const nlohmann::json& component, const std::string& name, int64_t vocabulary) {
  for_each_step(component, name, "processors", [&](const Fields& step, const std::string& type) {
    if (type == "ByteLevel") return;
    if (type != "TemplateProcessing") step.refuse("type", "TemplateProcessing, ByteLevel or Sequence");
    std::vector<int64_t> first, last;
    read_template(step, vocabulary, first, last);
    before.insert(before.begin(), first.begin(), first.end());
    after.insert(after.end(), last.begin(), last.end());
  });
}

}  // namespace plimsoll::tokenize
