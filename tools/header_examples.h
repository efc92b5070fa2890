// Names that the examples in the comments of headers use without making them. tools/check_docs compiles the examples in
// front of these declarations and links nothing.
#pragma once

#include <gtest/gtest.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/optim/adamw.h>

#include <filesystem>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <vector>

#include "plimsoll/amp/grad_scaler.h"
#include "plimsoll/io/tensor_piece.h"
#include "plimsoll/models/gpt/model.h"
#include "plimsoll/nn/linear.h"
#include "plimsoll/optim/groups.h"
#include "plimsoll/shard/average/compressed_average.h"
#include "plimsoll/shard/communicator/communicator.h"
#include "plimsoll/watch/report.h"

namespace plimsoll::header_examples {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

extern at::Tensor gradients, loss, target, targets, tokens, used, values, x;
at::Tensor loss_of(const at::Tensor& output, const at::Tensor& target);
extern int64_t begin, end, k, m, n, rank;
extern double read_and_written;

extern models::GptConfig config;
extern models::Gpt model;
extern nn::Linear block;
extern std::shared_ptr<torch::nn::Module> block0, block1;

extern torch::optim::AdamWOptions options;
extern torch::optim::AdamW optimizer;
struct Optimizer {  // any of 1-D parts
  template <class Parameters>
  explicit Optimizer(const Parameters&) {}
  void step();
};
extern std::vector<optim::NamedGroup> groups;
extern amp::GradScaler scaler;

extern std::shared_ptr<const shard::Communicator> ranks;
extern shard::CompressedAverage average;
extern std::filesystem::path run;
extern io::PieceMap mine;
extern nlohmann::json state;
extern c10d::Work work;

}  // namespace plimsoll::header_examples
