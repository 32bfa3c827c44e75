#pragma once

#include <gtest/gtest.h>

#include <string>

#include "kvant/kernels/cpu.h"

namespace kvant::kernels {

/// What a test of each instruction set is called.
inline std::string IsaTestName(const testing::TestParamInfo<Isa>& isa) {
  std::string name(IsaName(isa.param));
  std::erase(name, '-');
  return name;
}

}  // namespace kvant::kernels
