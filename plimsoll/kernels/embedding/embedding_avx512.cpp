#include "plimsoll/kernels/embedding/embedding_rows.inc"

namespace plimsoll::kernels {
extern const EmbeddingRows kEmbeddingRowsAvx512 = {gather, sum_places};
}
