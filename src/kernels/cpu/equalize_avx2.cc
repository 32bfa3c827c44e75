#include <immintrin.h>

#include "kernels/cpu/equalize_kernels.h"

namespace kvant::kernels {
namespace {

__m256 LoadHalves(const Half* src) { return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(src))); }

void AddKeys(uint32_t head_dim, const Half* keys, size_t num_keys, double* sums, float* lows, float* highs) {
  for (uint32_t c = 0; c < head_dim; c += 8) {
    __m256d first_sums = _mm256_loadu_pd(sums + c);
    __m256d last_sums = _mm256_loadu_pd(sums + c + 4);
    __m256 low = _mm256_loadu_ps(lows + c);
    __m256 high = _mm256_loadu_ps(highs + c);
    for (size_t i = 0; i < num_keys; ++i) {
      const __m256 key = LoadHalves(keys + i * head_dim + c);
      first_sums = _mm256_add_pd(first_sums, _mm256_cvtps_pd(_mm256_castps256_ps128(key)));
      last_sums = _mm256_add_pd(last_sums, _mm256_cvtps_pd(_mm256_extractf128_ps(key, 1)));
      low = _mm256_min_ps(key, low);
      high = _mm256_max_ps(key, high);
    }
    _mm256_storeu_pd(sums + c, first_sums);
    _mm256_storeu_pd(sums + c + 4, last_sums);
    _mm256_storeu_ps(lows + c, low);
    _mm256_storeu_ps(highs + c, high);
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

const EqualizeKernels kEqualizeAvx2 = {AddKeys, Equalize};

}  // namespace kvant::kernels
