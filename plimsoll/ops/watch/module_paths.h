// Paths for torch's own operators: those of the modules that are being called. For the watch's own use.
#pragma once

#include <algorithm>
#include <array>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace plimsoll::ops {

// Operators of torch that sum many terms, and those that bound or normalise what is between them.
inline constexpr std::array<std::string_view, 38> kWatchedOperators = {"aten::linear",
                                                                       "aten::matmul",
                                                                       "aten::mm",
                                                                       "aten::bmm",
                                                                       "aten::mv",
                                                                       "aten::dot",
                                                                       "aten::einsum",
                                                                       "aten::bilinear",
                                                                       "aten::addmm",
                                                                       "aten::addmv",
                                                                       "aten::baddbmm",
                                                                       "aten::addbmm",
                                                                       "aten::conv1d",
                                                                       "aten::conv2d",
                                                                       "aten::conv3d",
                                                                       "aten::conv_transpose1d",
                                                                       "aten::conv_transpose2d",
                                                                       "aten::conv_transpose3d",
                                                                       "aten::convolution",
                                                                       "aten::_convolution",
                                                                       "aten::softmax",
                                                                       "aten::_softmax",
                                                                       "aten::log_softmax",
                                                                       "aten::_log_softmax",
                                                                       "aten::scaled_dot_product_attention",
                                                                       "aten::_native_multi_head_attention",
                                                                       "aten::_transformer_encoder_layer_fwd",
                                                                       "aten::layer_norm",
                                                                       "aten::rms_norm",
                                                                       "aten::batch_norm",
                                                                       "aten::group_norm",
                                                                       "aten::instance_norm",
                                                                       "aten::lstm",
                                                                       "aten::gru",
                                                                       "aten::rnn_tanh",
                                                                       "aten::rnn_relu",
                                                                       "aten::embedding_bag",
                                                                       "aten::cdist"};

class ModulePaths {
 public:
  // A call of a module. is_layer: what it runs has its path, else its path and the operator's name; of an empty path
  // nothing is named.
  void enter(std::string path, bool is_layer) { calls_.push_back({std::move(path), is_layer, {}}); }

  // The end of the call entered last; another one's does nothing.
  void leave(std::string_view path) {
    if (!calls_.empty() && calls_.back().path == path) calls_.pop_back();
  }

  // The path of an operator that the module called last runs now: "encoder.0.fc1", "encoder.0.attention.matmul", of the
  // second in one call "encoder.0.attention.matmul.2". Empty: it has none.
  std::string next(std::string_view operator_name) {
    if (calls_.empty() || calls_.back().path.empty()) return {};
    if (std::ranges::find(kWatchedOperators, operator_name) == kWatchedOperators.end()) return {};
    Call& call = calls_.back();
    const std::string name(operator_name.substr(operator_name.find_first_not_of('_', operator_name.rfind(':') + 1)));
    std::string path = call.path;
    if (!call.is_layer) path.append(".").append(name);
    const int count = ++call.operators[call.is_layer ? "" : name];
    if (count > 1) path.append(".").append(std::to_string(count));
    return path;
  }

 private:
  struct Call {
    std::string path;
    bool is_layer;
    std::map<std::string, int> operators;  // run so far, by name
  };
  std::vector<Call> calls_;
};

}  // namespace plimsoll::ops
