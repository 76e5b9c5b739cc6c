// Sixteen outputs in two registers. Needs AVX2, FMA and F16C.
#pragma once
#include <immintrin.h>

#include <cstdint>

namespace lanes {
namespace {  // of one file: the functions of another instruction set have the same names

constexpr int MOST_ROWS = 2;

struct Codes {
    __m256i low[2], high[2];
};
// Pairs of products in 16 bits: of 32 inputs they reach 16 x 15 x 127 = 30,480.
struct Sums {
    __m256i halves[2];
};
struct Floats {
    __m256 halves[2];
};

inline Sums no_sums() { return {{_mm256_setzero_si256(), _mm256_setzero_si256()}}; }
inline Floats no_floats() { return {{_mm256_setzero_ps(), _mm256_setzero_ps()}}; }

// 8 codes of each output.
inline Codes unpack(const uint8_t* packed) {
    Codes codes;
    const __m256i nibble = _mm256_set1_epi8(15);
    for (int half = 0; half < 2; ++half) {
        const __m256i both = _mm256_loadu_si256((const __m256i*)packed + half);
        codes.low[half] = _mm256_and_si256(both, nibble);
        codes.high[half] = _mm256_and_si256(_mm256_srli_epi16(both, 4), nibble);
    }
    return codes;
}

inline __m256i four(const int8_t* row) {
    int32_t word;
    __builtin_memcpy(&word, row, sizeof word);
    return _mm256_set1_epi32(word);
}

// sums + codes times the next 8 inputs of a row
inline Sums add(Sums sums, const Codes& codes, const int8_t* row) {
    const __m256i first = four(row), second = four(row + 4);
    for (int half = 0; half < 2; ++half) {
        sums.halves[half] = _mm256_add_epi16(sums.halves[half], _mm256_maddubs_epi16(codes.low[half], first));
        sums.halves[half] = _mm256_add_epi16(sums.halves[half], _mm256_maddubs_epi16(codes.high[half], second));
    }
    return sums;
}

inline __m256 floats(__m256i pairs) { return _mm256_cvtepi32_ps(_mm256_madd_epi16(pairs, _mm256_set1_epi16(1))); }
inline Floats floats(Sums sums) { return {{floats(sums.halves[0]), floats(sums.halves[1])}}; }
inline Floats all(float value) { return {{_mm256_set1_ps(value), _mm256_set1_ps(value)}}; }
inline Floats multiply_add(Floats a, Floats b, Floats c) {
    for (int half = 0; half < 2; ++half) c.halves[half] = _mm256_fmadd_ps(a.halves[half], b.halves[half], c.halves[half]);
    return c;
}
inline Floats multiply_subtract_from(Floats a, Floats b, Floats c) {
    for (int half = 0; half < 2; ++half) c.halves[half] = _mm256_fnmadd_ps(a.halves[half], b.halves[half], c.halves[half]);
    return c;
}
inline Floats of_float16(const uint16_t* values) {
    const __m128i* halves = (const __m128i*)values;
    return {{_mm256_cvtph_ps(_mm_loadu_si128(halves)), _mm256_cvtph_ps(_mm_loadu_si128(halves + 1))}};
}
inline Floats of_bytes(const uint8_t* values) {
    const __m128i bytes = _mm_loadu_si128((const __m128i*)values);
    return {{_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(bytes)),
             _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_srli_si128(bytes, 8)))}};
}
inline void store(float* to, Floats values) {
    for (int half = 0; half < 2; ++half) _mm256_storeu_ps(to + 8 * half, values.halves[half]);
}

// One output and one row: eight sums of 4 products each, of 32 inputs. A pair of products reaches 2 x 127 x 127.
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
    return _mm256_fmadd_ps(floats(_mm256_maddubs_epi16(weight.sizes, signed_row)), _mm256_set1_ps(scale), part);
}
inline float total(Part part) {
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(part), _mm256_extractf128_ps(part, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

}  // namespace
}  // namespace lanes
