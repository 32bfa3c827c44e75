#include <immintrin.h>

#include "kernels/cpu/equalize_kernels.h"

namespace kvant::kernels {
namespace {

__m256 LoadHalves(const Half* src) { return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(src))); }

void AddSums(uint32_t head_dim, const Half* keys, size_t num_keys, double* sums) {
  for (uint32_t c = 0; c < head_dim; c += 8) {
    __m256d low = _mm256_loadu_pd(sums + c);
    __m256d high = _mm256_loadu_pd(sums + c + 4);
    for (size_t i = 0; i < num_keys; ++i) {
      const __m256 key = LoadHalves(keys + i * head_dim + c);
      low = _mm256_add_pd(low, _mm256_cvtps_pd(_mm256_castps256_ps128(key)));
      high = _mm256_add_pd(high, _mm256_cvtps_pd(_mm256_extractf128_ps(key, 1)));
    }
    _mm256_storeu_pd(sums + c, low);
    _mm256_storeu_pd(sums + c + 4, high);
  }
}

void AddRanges(uint32_t head_dim, const Half* mean, const Half* keys, size_t num_keys, float* ranges) {
  const __m256 sign = _mm256_set1_ps(-0.0F);
  for (uint32_t c = 0; c < head_dim; c += 8) {
    const __m256 middle = LoadHalves(mean + c);
    __m256 largest = _mm256_loadu_ps(ranges + c);
    for (size_t i = 0; i < num_keys; ++i) {
      const __m256 distance = _mm256_sub_ps(LoadHalves(keys + i * head_dim + c), middle);
      largest = _mm256_max_ps(largest, _mm256_andnot_ps(sign, distance));
    }
    _mm256_storeu_ps(ranges + c, largest);
  }
}

void Equalize(uint32_t head_dim, const Half* mean, const Half* scale, Half* keys, size_t num_keys) {
  const __m256 limit = _mm256_set1_ps(kHalfMax);
  for (uint32_t c = 0; c < head_dim; c += 8) {
    const __m256 middle = LoadHalves(mean + c);
    const __m256 divisor = LoadHalves(scale + c);
    for (size_t i = 0; i < num_keys; ++i) {
      Half* key = keys + i * head_dim + c;
      __m256 value = _mm256_div_ps(_mm256_sub_ps(LoadHalves(key), middle), divisor);
      value = _mm256_max_ps(_mm256_min_ps(value, limit), _mm256_sub_ps(_mm256_setzero_ps(), limit));
      _mm_storeu_si128(reinterpret_cast<__m128i*>(key), _mm256_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT));
    }
  }
}

}  // namespace

const EqualizeKernels kEqualizeAvx2 = {AddSums, AddRanges, Equalize};

}  // namespace kvant::kernels
