#include "kernels/cpu/attend_template.h"
#include "kernels/cpu/pair_lanes_avx2.h"

namespace kvant::kernels {

const AttendKernels kAttendAvx2 = MakeAttendKernels<PairLanesAvx2>();

}  // namespace kvant::kernels
