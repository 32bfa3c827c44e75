#include "kernels/cpu/attend_template.h"
#include "kernels/cpu/lanes_avx2.h"

namespace kvant::kernels {

const AttendKernels kAttendAvx2 = MakeAttendKernels<LanesAvx2>();

}  // namespace kvant::kernels
