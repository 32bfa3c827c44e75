#include "kvant/kernels/cpu.h"

#include <cpuid.h>

#include <array>
#include <cstdint>

namespace kvant::kernels {
namespace {

struct CpuidLeaf {
  uint32_t eax = 0;
  uint32_t ebx = 0;
  uint32_t ecx = 0;
  uint32_t edx = 0;
};

CpuidLeaf Cpuid(uint32_t leaf, uint32_t subleaf) {
  CpuidLeaf out;
  __get_cpuid_count(leaf, subleaf, &out.eax, &out.ebx, &out.ecx, &out.edx);  // leaves zeros where the leaf is unknown
  return out;
}

// The register states the operating system saves. Without them a CPU's wide registers may not be touched.
uint64_t EnabledStates(bool has_osxsave) {
  if (!has_osxsave) {
    return 0;
  }
  uint32_t low = 0;
  uint32_t high = 0;
  __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (uint64_t{high} << 32) | low;
}

constexpr uint64_t kAvxStates = 0x6;      // XMM and YMM
constexpr uint64_t kAvx512States = 0xE6;  // and opmask, upper halves, upper registers

struct Feature {
  std::string_view name;
  bool present;
};

struct CpuFeatures {
  std::array<Feature, 13> list;
  bool avx2 = false;
  bool avx512_vnni = false;
  bool look_ups = false;
};

bool Bit(uint32_t word, int bit) { return ((word >> bit) & 1U) != 0; }

CpuFeatures Detect() {
  const CpuidLeaf one = Cpuid(1, 0);
  const CpuidLeaf seven = Cpuid(7, 0);
  const CpuidLeaf seven_one = Cpuid(7, 1);
  const uint64_t states = EnabledStates(Bit(one.ecx, 27));
  const bool ymm = (states & kAvxStates) == kAvxStates;
  const bool zmm = (states & kAvx512States) == kAvx512States;
  CpuFeatures found;
  found.list = {{{"avx2", ymm && Bit(seven.ebx, 5)},
                 {"fma", ymm && Bit(one.ecx, 12)},
                 {"f16c", ymm && Bit(one.ecx, 29)},
                 {"avx512f", zmm && Bit(seven.ebx, 16)},
                 {"avx512dq", zmm && Bit(seven.ebx, 17)},
                 {"avx512bw", zmm && Bit(seven.ebx, 30)},
                 {"avx512vl", zmm && Bit(seven.ebx, 31)},
                 {"avx512vnni", zmm && Bit(seven.ecx, 11)},
                 {"avx512vbmi", zmm && Bit(seven.ecx, 1)},
                 {"gfni", zmm && Bit(seven.ecx, 8)},
                 {"avx512bf16", zmm && Bit(seven_one.eax, 5)},
                 {"avx512fp16", zmm && Bit(seven.edx, 23)},
                 {"amx-int8", Bit(seven.edx, 25)}}};
  const auto& list = found.list;
  found.avx2 = list[0].present && list[1].present && list[2].present;
  found.avx512_vnni = found.avx2;
  for (size_t i = 3; i <= 7; ++i) {
    found.avx512_vnni = found.avx512_vnni && list[i].present;
  }
  found.look_ups = found.avx512_vnni && list[8].present && list[9].present;
  return found;
}

const CpuFeatures& Features() {
  static const CpuFeatures features = Detect();
  return features;
}

constexpr std::array kAllIsas = {Isa::kScalar, Isa::kAvx2, Isa::kAvx512Vnni};

bool IsAvailable(Isa isa) {
  switch (isa) {
    case Isa::kScalar: return true;
    case Isa::kAvx2: return Features().avx2;
    case Isa::kAvx512Vnni: return Features().avx512_vnni;
  }
  return false;
}

std::string JoinNames(const auto& isas) {
  std::string names;
  for (const Isa isa : isas) {
    names.append(names.empty() ? "" : ", ").append(IsaName(isa));
  }
  return names;
}

}  // namespace

std::string_view IsaName(Isa isa) {
  switch (isa) {
    case Isa::kScalar: return "scalar";
    case Isa::kAvx2: return "avx2";
    case Isa::kAvx512Vnni: return "avx512-vnni";
  }
  return "unknown";
}

Result<Isa> ParseIsa(std::string_view word) {
  for (const Isa isa : kAllIsas) {
    if (word != IsaName(isa)) {
      continue;
    }
    if (!IsAvailable(isa)) {
      return Status(StatusCode::kModelUnsupported, "this CPU cannot run instruction set '" + std::string(word) +
                                                       "'; it can run " + JoinNames(AvailableIsas()));
    }
    return isa;
  }
  return Status(StatusCode::kInvalidArgument,
                "unknown instruction set '" + std::string(word) + "'; known are " + JoinNames(kAllIsas));
}

const std::vector<Isa>& AvailableIsas() {
  static const std::vector<Isa> available = [] {
    std::vector<Isa> isas;
    for (const Isa isa : kAllIsas) {
      if (IsAvailable(isa)) {
        isas.push_back(isa);
      }
    }
    return isas;
  }();
  return available;
}

bool HasLookUps() { return Features().look_ups; }

std::string CpuFeatureList() {
  std::string names;
  for (const Feature& feature : Features().list) {
    if (feature.present) {
      names.append(names.empty() ? "" : " ").append(feature.name);
    }
  }
  return names;
}

}  // namespace kvant::kernels
