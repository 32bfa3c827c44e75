#include "kernels/cpu/attend_template.h"
#include "kernels/cpu/lanes_portable.h"

namespace kvant::kernels {

const AttendKernels kAttendScalar = MakeAttendKernels<LanesPortable>();

}  // namespace kvant::kernels
