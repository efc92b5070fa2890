// Modules of C++ on scaled tensors: their parameters stay the tensors that they are, for optimizers made before or
// after, and have (data, scale) for memory.
#pragma once

#include <torch/nn/module.h>

#include <map>
#include <memory>
#include <string>

#include "plimsoll/autoscale/session.h"

namespace plimsoll::autoscale {

// Every floating point parameter, once where it is tied. Buffers stay plain, and so do arguments: an operator on a
// parameter and a plain tensor gives the latter a scale.
void as_scaled(torch::nn::Module& module, const std::shared_ptr<Session>& session);
// The inverse: plain FP32 tensors of the same values.
void as_values(torch::nn::Module& module);

// Within it the module's operators run scaled; after it the parameters are plain again, with the values that they have.
//   autoscale::Scope scope(*model, {.storage = at::kHalf});
//   torch::optim::AdamW optimizer(model->parameters());
//   model->loss(x, y).backward(); optimizer.step();
class Scope {
 public:
  explicit Scope(torch::nn::Module& module, const Settings& settings = {});
  ~Scope();
  Scope(const Scope&) = delete;
  Scope& operator=(const Scope&) = delete;

  Session& session() const { return *session_; }

 private:
  torch::nn::Module& module_;
  const std::shared_ptr<Session> session_;
};

// Plain tensors by name, for files: of a scaled one `name`, its data, `name.scale`, fp64, and `name.remainder` where it
// has one, as Python's state_dict(); of a plain one, and of buffers, the tensor. All are copies.
using State = std::map<std::string, at::Tensor>;
State state_of(const torch::nn::Module& module);
// Into a module with the same names; one of parameters without scales, of any other checkpoint, loads, too.
void load_state(torch::nn::Module& module, const State& state);

}  // namespace plimsoll::autoscale
