// Layers whose parameters are about to be given values: nothing is drawn for them.
#pragma once

namespace plimsoll::nn {

// While it lives, on this thread, constructors of layers leave parameters that they would draw uninitialised.
class UndrawnParameters {
 public:
  UndrawnParameters();
  ~UndrawnParameters();
  UndrawnParameters(const UndrawnParameters&) = delete;
  UndrawnParameters& operator=(const UndrawnParameters&) = delete;

  static bool are_wanted();

 private:
  bool outer_;
};

}  // namespace plimsoll::nn
