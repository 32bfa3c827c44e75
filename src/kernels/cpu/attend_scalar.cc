#include "kernels/cpu/attend_template.h"
#include "kernels/cpu/pair_lanes_portable.h"

namespace kvant::kernels {

const AttendKernels kAttendScalar = MakeAttendKernels<PairLanesPortable>();

}  // namespace kvant::kernels
