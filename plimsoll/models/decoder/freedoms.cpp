#include "plimsoll/models/decoder/model.h"

namespace plimsoll::models {

Freedoms DecoderImpl::freedoms() const {
  Freedoms none;
  none.without = {"all weights: the freedoms of this family are not described"};
  return none;
}
std::map<std::string, at::Tensor> DecoderImpl::weights_with_freedom() const { return {}; }
Amaxes DecoderImpl::worst_case_amaxes() const { return {}; }

std::shared_ptr<LanguageModel> DecoderImpl::multiplied(const Exponents&) const {
  auto copy = std::dynamic_pointer_cast<DecoderImpl>(clone());
  copy->eval();
  return copy;
}

}  // namespace plimsoll::models
