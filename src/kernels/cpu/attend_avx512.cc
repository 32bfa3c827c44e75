#include "kernels/cpu/attend_template.h"
#include "kernels/cpu/lanes_avx512.h"

namespace kvant::kernels {

const AttendKernels kAttendAvx512Vnni = MakeAttendKernels<LanesAvx512>();

}  // namespace kvant::kernels
