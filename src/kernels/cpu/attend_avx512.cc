#include "kernels/cpu/attend_template.h"
#include "kernels/cpu/pair_lanes_avx512.h"

namespace kvant::kernels {

const AttendKernels kAttendAvx512Vnni = MakeAttendKernels<PairLanesAvx512>();

}  // namespace kvant::kernels
