// Packing, token-tier codecs and what prefill says of its keys, beside a device copy of the same fp16 input.
#include "tables.h"

int main() {
  using namespace kvant::cuda_bench;
  PrintPages(MustMeasure(kvant::kernels::cuda::MeasurePack({})));
  PrintPages(MustMeasure(kvant::kernels::cuda::MeasureCodec({})));
  return 0;
}
