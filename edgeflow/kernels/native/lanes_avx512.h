// Sixteen outputs in one register. Needs AVX-512 F, BW, VL and VNNI.
#pragma once
#include <immintrin.h>

#include <cstdint>

namespace lanes {
namespace {  // of one file: the functions of another instruction set have the same names

constexpr int MOST_ROWS = 8;

struct Codes {
    __m512i low, high;
};
using Sums = __m512i;
using Floats = __m512;

inline Sums no_sums() { return _mm512_setzero_si512(); }
inline Floats no_floats() { return _mm512_setzero_ps(); }

// 8 codes of each output.
inline Codes unpack(const uint8_t* packed) {
    const __m512i both = _mm512_loadu_si512(packed), nibble = _mm512_set1_epi8(15);
    return {_mm512_and_si512(both, nibble), _mm512_and_si512(_mm512_srli_epi16(both, 4), nibble)};
}

inline __m512i four(const int8_t* row) {
    int32_t word;
    __builtin_memcpy(&word, row, sizeof word);
    return _mm512_set1_epi32(word);
}

// sums + codes times the next 8 inputs of a row
inline Sums add(Sums sums, const Codes& codes, const int8_t* row) {
    return _mm512_dpbusd_epi32(_mm512_dpbusd_epi32(sums, codes.low, four(row)), codes.high, four(row + 4));
}

inline Floats floats(Sums sums) { return _mm512_cvtepi32_ps(sums); }
inline Floats all(float value) { return _mm512_set1_ps(value); }
inline Floats multiply_add(Floats a, Floats b, Floats c) { return _mm512_fmadd_ps(a, b, c); }
inline Floats multiply_subtract_from(Floats a, Floats b, Floats c) { return _mm512_fnmadd_ps(a, b, c); }
inline Floats of_float16(const uint16_t* values) { return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)values)); }
inline Floats of_bytes(const uint8_t* values) {
    return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i*)values)));
}
inline void store(float* to, Floats values) { _mm512_storeu_ps(to, values); }

// One output and one row: eight sums of 4 products each, of 32 inputs.
using Part = __m256;
struct Bytes {
    __m256i signs, sizes;
};

inline Part no_part() { return _mm256_setzero_ps(); }
inline Bytes bytes(const int8_t* codes) {
    const __m256i signs = _mm256_loadu_si256((const __m256i*)codes);
    return {signs, _mm256_abs_epi8(signs)};
}
inline Part add(Part part, const Bytes& weight, const int8_t* row, float scale) {
    const __m256i signed_row = _mm256_sign_epi8(_mm256_loadu_si256((const __m256i*)row), weight.signs);
    const __m256i sums = _mm256_dpbusd_epi32(_mm256_setzero_si256(), weight.sizes, signed_row);
    return _mm256_fmadd_ps(_mm256_cvtepi32_ps(sums), _mm256_set1_ps(scale), part);
}
inline float total(Part part) {
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(part), _mm256_extractf128_ps(part, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

}  // namespace
}  // namespace lanes
