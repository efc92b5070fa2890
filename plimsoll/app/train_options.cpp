#include "plimsoll/app/train_options.h"

namespace plimsoll::app {

ModelShape shape_of(const TrainOptions& options) {
  ModelShape shape = model_by_name(options.model);
  shape.layers = options.layers.value_or(shape.layers);
  shape.dim = options.dim.value_or(shape.dim);
  shape.heads = options.heads.value_or(shape.heads);
  shape.context = options.context.value_or(shape.context);
  check_shape(shape);
  return shape;
}

}  // namespace plimsoll::app
