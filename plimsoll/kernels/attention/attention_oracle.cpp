// Attention in double, one query at a time, with bounds from first-order error analysis. u is 2^-24; every sum of n
// terms in FP32 is within gamma(n) of its sum of magnitudes, whatever the order.
#include "plimsoll/kernels/attention/attention_test_support.h"
#include "plimsoll/runtime/philox.h"

namespace plimsoll::kernels::testing {
namespace {

constexpr double kUnit = 0x1p-24, kTiny = 0x1p-100;
constexpr double kExponential = 12;                         // roundings of 2^x, its argument taken as exact
constexpr double kSecondOrder = 1.05;                       // products of errors
constexpr double kMostBias = 0x1.fffffep127 * 0.693147180;  // beside it FP32 holds no product: the score is the bias
constexpr double kInfinity = std::numeric_limits<double>::infinity();

double rounding_of(Format format, double x) {
  if (format == Format::kFp32) return std::abs(x) * kUnit + kTiny;
  return format == Format::kBf16 ? std::abs(x) * 0x1p-8 + kTiny : std::abs(x) * 0x1p-11 + 0x1p-25;
}

class Oracle {
 public:
  Oracle(const AttentionProblem& problem, bool pairs)
      : p_(problem),
        s_(problem.c.shape),
        rules_(problem.rules()),
        narrow_(pairs ? 0x1p-8 : 0.0),
        scale_(static_cast<double>(rules_.scale)),
        keep_(1.0 / (1.0 - static_cast<double>(rules_.dropout.probability))),
        q_(decoded(p_.q)),
        k_(decoded(p_.k)),
        v_(decoded(p_.v)),
        grad_(decoded(p_.grad)) {
    apply(p_.k_scale, p_.k, s_.channels, k_);
    apply(p_.v_scale, p_.v, s_.value_channels, v_);
    prepare(e_.output, p_.grad.array.count());
    prepare(e_.lse, s_.batch * s_.heads * s_.queries);
    prepare(e_.grad_q, p_.q.array.count());
    prepare(e_.grad_k, p_.k.array.count());
    prepare(e_.grad_v, p_.v.array.count());
    prepare(e_.grad_bias, p_.bias.count());
  }

  ExactAttention run() {
    for (int64_t b = 0; b < s_.batch; ++b) {
      for (int64_t h = 0; h < s_.heads; ++h) {
        for (int64_t i = 0; i < s_.queries; ++i) one_query(b, h, i);
      }
    }
    finish(e_.grad_k, p_.c.format, sums(s_.queries * s_.heads / s_.groups));
    finish(e_.grad_v, p_.c.format, sums(s_.queries * s_.heads / s_.groups));
    finish(e_.grad_bias, Format::kFp32, sums(s_.batch * s_.heads * s_.queries));
    return std::move(e_);
  }

 private:
  static void prepare(ExactTensor& t, int64_t count) {
    t.value.assign(static_cast<size_t>(count), std::nan(""));
    t.bound.assign(static_cast<size_t>(count), 0.0);
    t.magnitude.assign(static_cast<size_t>(count), 0.0);
  }
  // Additions that a term of a sum over n terms passes, with the rescaling of partial sums.
  double sums(int64_t n) const { return gamma(static_cast<double>(n) + 16); }

  static void add(ExactTensor& t, int64_t index, double term, double error) {
    const size_t i = static_cast<size_t>(index);
    if (std::isnan(t.value[i])) t.value[i] = 0;
    t.value[i] += term;
    t.bound[i] += error;
    t.magnitude[i] += std::abs(term);
  }
  static void finish(ExactTensor& t, Format format, double sum_error) {
    for (size_t i = 0; i < t.value.size(); ++i) {
      t.bound[i] = (t.bound[i] + sum_error * t.magnitude[i]) * kSecondOrder + kTiny;
      t.bound[i] += rounding_of(format, std::abs(t.value[i]) + t.bound[i]);
    }
  }

  double query(int64_t b, int64_t h, int64_t i, int64_t c) const { return q_[at(p_.q, b, h, i, c)]; }
  double key(int64_t b, int64_t g, int64_t j, int64_t c) const { return k_[at(p_.k, b, g, j, c)]; }
  double value(int64_t b, int64_t g, int64_t j, int64_t c) const { return v_[at(p_.v, b, g, j, c)]; }
  double grad(int64_t b, int64_t h, int64_t i, int64_t c) const { return grad_[at(p_.grad, b, h, i, c)]; }
  static size_t at(const HeadsArray& x, int64_t b, int64_t h, int64_t row, int64_t c) {
    return static_cast<size_t>(x.index(b, h, row, c));
  }
  static std::vector<double> decoded(const HeadsArray& x) {
    std::vector<double> values;
    for (int64_t i = 0; i < x.array.count(); ++i) values.push_back(static_cast<double>(x.array.at(i)));
    return values;
  }
  void apply(const std::vector<float>& scale, const HeadsArray& x, int64_t channels,
             std::vector<double>& values) const {
    for (size_t row = 0; row < scale.size(); ++row) {
      const int64_t i = static_cast<int64_t>(row), head = i / s_.keys;
      for (int64_t c = 0; c < channels; ++c) {
        values[at(x, head / s_.groups, head % s_.groups, i % s_.keys, c)] *= static_cast<double>(scale[row]);
      }
    }
  }
  bool stays(int64_t b, int64_t h, int64_t i, int64_t j) const {
    const runtime::Philox words{.seed = rules_.dropout.seed, .step = rules_.dropout.offset};
    const int64_t row = (b * s_.heads + h) * s_.queries + i;
    const uint64_t element = static_cast<uint64_t>(row * ((s_.keys + 3) / 4) * 4 + j);
    return static_cast<double>(words.word(element)) >= static_cast<double>(rules_.dropout.probability) * 0x1p32;
  }

  struct Row {
    std::vector<double> weight, error;  // softmax; relative error
    double lse = -kInfinity, lse_error = 0;
    bool sees = false;
  };

  Row softmax(int64_t b, int64_t h, int64_t i) const {
    const int64_t g = h / (s_.heads / s_.groups);
    Row row;
    std::vector<double> score, error;
    double top = -kInfinity, lowest = kInfinity;
    for (int64_t j = 0; j < s_.keys; ++j) {
      double product = 0, magnitude = 0, bias = 0;
      for (int64_t c = 0; c < s_.channels; ++c) {
        const double term = query(b, h, i, c) * key(b, g, j, c);
        product += term;
        magnitude += std::abs(term);
      }
      if (rules_.bias != nullptr) {
        const AttentionMatrixStrides& t = rules_.bias_strides;
        bias = static_cast<double>(p_.bias.at(b * t.batch + h * t.head + i * t.query + j * t.key));
        if (std::isfinite(bias)) bias = std::clamp(bias, -kMostBias, kMostBias);
      }
      const double rounded = std::abs(scale_) * magnitude + (std::abs(bias) < kMostBias ? std::abs(bias) : 0.0);
      const bool seen = p_.visible(b, h, i, j);
      score.push_back(seen ? scale_ * product + bias : -kInfinity);
      error.push_back(gamma(static_cast<double>(s_.channels) + 8) * rounded + kTiny);
      if (!seen) continue;
      row.sees = true;
      top = std::max(top, score.back());
      lowest = std::min(lowest, score.back());
    }
    row.weight.assign(score.size(), 0.0);
    row.error.assign(score.size(), 0.0);
    if (!row.sees) return row;
    double sum = 0, mean_error = 0;
    for (double x : score) sum += std::exp(x - top);
    // Each block of 64 keys or more may move the top, which costs an exponential and a product.
    const double blocks = static_cast<double>(s_.keys / 64 + 1);
    const double shared = kUnit * (3 * (top - lowest) + (kExponential + 2) * (blocks + 1));
    for (size_t j = 0; j < score.size(); ++j) {
      row.weight[j] = std::exp(score[j] - top) / sum;
      row.error[j] = error[j] + shared;
      mean_error += row.weight[j] * row.error[j];
    }
    const double all_error = mean_error + sums(s_.keys);
    row.lse = top + std::log(sum);
    row.lse_error = (all_error + 4 * kUnit * (std::abs(top) + std::abs(std::log(sum)) + 1)) * kSecondOrder;
    for (double& x : row.error) x += all_error;
    return row;
  }

  void one_query(int64_t b, int64_t h, int64_t i) {
    const int64_t g = h / (s_.heads / s_.groups);
    const Row row = softmax(b, h, i);
    const size_t lse = static_cast<size_t>((b * s_.heads + h) * s_.queries + i);
    e_.lse.value[lse] = row.lse;
    e_.lse.bound[lse] = row.lse_error;

    std::vector<double> factor(row.weight.size(), 1.0);
    for (int64_t j = 0; j < s_.keys; ++j) {
      if (rules_.dropout.probability > 0) factor[static_cast<size_t>(j)] = stays(b, h, i, j) ? keep_ : 0.0;
    }
    double delta = 0, delta_error = 0, delta_magnitude = 0;
    for (int64_t c = 0; c < s_.value_channels; ++c) {
      const int64_t index = p_.grad.index(b, h, i, c);
      for (int64_t j = 0; j < s_.keys; ++j) {
        const size_t at = static_cast<size_t>(j);
        const double term = row.weight[at] * factor[at] * value(b, g, j, c);
        add(e_.output, index, term, std::abs(term) * (row.error[at] + narrow_ + 4 * kUnit));
      }
      const size_t at = static_cast<size_t>(index);
      double& bound = e_.output.bound[at];
      if (std::isnan(e_.output.value[at])) e_.output.value[at] = 0;
      bound = (bound + sums(s_.keys) * e_.output.magnitude[at]) * kSecondOrder + kTiny;
      bound += rounding_of(p_.c.format, std::abs(e_.output.value[at]) + bound);
      const double upstream = grad(b, h, i, c);
      delta += upstream * e_.output.value[at];
      delta_magnitude += std::abs(upstream * e_.output.value[at]);
      delta_error += std::abs(upstream) * bound;
    }
    if (!p_.c.codes) gradients(b, h, i, row, factor, delta, delta_error + gamma(40) * delta_magnitude);
  }

  void gradients(int64_t b, int64_t h, int64_t i, const Row& row, const std::vector<double>& factor, double delta,
                 double delta_error) {
    const int64_t g = h / (s_.heads / s_.groups);
    for (int64_t j = 0; j < s_.keys; ++j) {
      const size_t at = static_cast<size_t>(j);
      double grad_weight = 0, magnitude = 0;
      for (int64_t c = 0; c < s_.value_channels; ++c) {
        const double term = grad(b, h, i, c) * value(b, g, j, c);
        grad_weight += term;
        magnitude += std::abs(term);
      }
      const double weight = row.weight[at], kept = weight * factor[at];
      // Scores once more, less the lse of the forward pass; far from 0, less their top, over their sum.
      const bool far = std::abs(row.lse) >= 1024;
      const double of_lse = far ? sums(s_.keys) : row.lse_error + 6 * kUnit * std::abs(row.lse);
      const double distance = weight > 0 ? -3 * kUnit * std::log(weight) : 0;
      const double relative = row.error[at] + of_lse + distance + (kExponential + 4) * kUnit;
      const double grad_score = kept * grad_weight - weight * delta;
      double error = (kept * std::abs(grad_weight) + weight * std::abs(delta)) * (relative + 4 * kUnit) +
                     kept * gamma(static_cast<double>(s_.value_channels) + 4) * magnitude + weight * delta_error;
      error *= kSecondOrder;
      add_bias(b, h, i, j, grad_score, error);
      error += narrow_ * (std::abs(grad_score) + error);
      for (int64_t c = 0; c < s_.channels; ++c) {
        const double k = scale_ * key(b, g, j, c), q = scale_ * query(b, h, i, c);
        const double factor_error = 2 * kUnit * std::abs(grad_score);
        add(e_.grad_q, p_.q.index(b, h, i, c), grad_score * k, (error + factor_error) * std::abs(k));
        add(e_.grad_k, p_.k.index(b, g, j, c), grad_score * q, (error + factor_error) * std::abs(q));
      }
      for (int64_t c = 0; c < s_.value_channels; ++c) {
        const double upstream = grad(b, h, i, c);
        add(e_.grad_v, p_.v.index(b, g, j, c), kept * upstream,
            std::abs(kept * upstream) * (relative + narrow_ + 4 * kUnit));
      }
    }
    for (int64_t c = 0; c < s_.channels; ++c) {
      const size_t at = static_cast<size_t>(p_.q.index(b, h, i, c));
      if (std::isnan(e_.grad_q.value[at])) e_.grad_q.value[at] = 0;
      double& bound = e_.grad_q.bound[at];
      bound = (bound + sums(s_.keys) * e_.grad_q.magnitude[at]) * kSecondOrder + kTiny;
      bound += rounding_of(p_.c.format, std::abs(e_.grad_q.value[at]) + bound);
    }
  }

  void add_bias(int64_t b, int64_t h, int64_t i, int64_t j, double grad_score, double error) {
    if (p_.bias.count() == 0) return;
    const AttentionMatrixStrides& t = p_.bias_strides;
    add(e_.grad_bias, b * t.batch + h * t.head + i * t.query + j * t.key, grad_score, error);
  }

  const AttentionProblem& p_;
  const AttentionShape& s_;
  AttentionRules rules_;
  double narrow_, scale_, keep_;
  std::vector<double> q_, k_, v_, grad_;
  ExactAttention e_;
};

}  // namespace

ExactAttention exact_attention(const AttentionProblem& problem, bool pairs) { return Oracle(problem, pairs).run(); }

}  // namespace plimsoll::kernels::testing
