// Sixteen outputs in arrays, for any processor; the compiler vectorises the loops.
#pragma once
#include <cstdint>

namespace lanes {
namespace {  // of one file: the functions of another instruction set have the same names

constexpr int MOST_ROWS = 2;
constexpr int COUNT = 16;

struct Codes {
    uint8_t low[4 * COUNT], high[4 * COUNT];
};
struct Sums {
    int32_t lane[COUNT];
};
struct Floats {
    float lane[COUNT];
};

inline Sums no_sums() { return {}; }
inline Floats no_floats() { return {}; }

// 8 codes of each output.
inline Codes unpack(const uint8_t* packed) {
    Codes codes;
    for (int i = 0; i < 4 * COUNT; ++i) codes.low[i] = packed[i] & 15;
    for (int i = 0; i < 4 * COUNT; ++i) codes.high[i] = packed[i] >> 4;
    return codes;
}

// sums + codes times the next 8 inputs of a row
inline Sums add(Sums sums, const Codes& codes, const int8_t* row) {
    for (int i = 0; i < COUNT; ++i)
        for (int j = 0; j < 4; ++j)
            sums.lane[i] += codes.low[4 * i + j] * row[j] + codes.high[4 * i + j] * row[4 + j];
    return sums;
}

inline Floats floats(const Sums& sums) {
    Floats values;
    for (int i = 0; i < COUNT; ++i) values.lane[i] = static_cast<float>(sums.lane[i]);
    return values;
}
inline Floats all(float value) {
    Floats values;
    for (float& lane : values.lane) lane = value;
    return values;
}
inline Floats multiply_add(const Floats& a, const Floats& b, Floats c) {
    for (int i = 0; i < COUNT; ++i) c.lane[i] += a.lane[i] * b.lane[i];
    return c;
}
inline Floats multiply_subtract_from(const Floats& a, const Floats& b, Floats c) {
    for (int i = 0; i < COUNT; ++i) c.lane[i] -= a.lane[i] * b.lane[i];
    return c;
}

// The exponent moves from a bias of 15 to one of 127, by a product that is exact for subnormal numbers too.
inline float of_float16(uint16_t bits) {
    const uint32_t finite = static_cast<uint32_t>(bits & 0x7fff) << 13, sign = static_cast<uint32_t>(bits & 0x8000) << 16;
    float size;
    __builtin_memcpy(&size, &finite, sizeof size);
    const float value = (bits & 0x7c00) == 0x7c00 ? __builtin_nanf("") : size * 0x1p112f;
    return sign ? -value : value;
}
inline Floats of_float16(const uint16_t* values) {
    Floats wide;
    for (int i = 0; i < COUNT; ++i) wide.lane[i] = of_float16(values[i]);
    return wide;
}
inline Floats of_bytes(const uint8_t* values) {
    Floats wide;
    for (int i = 0; i < COUNT; ++i) wide.lane[i] = values[i];
    return wide;
}
inline void store(float* to, const Floats& values) { __builtin_memcpy(to, values.lane, sizeof values.lane); }

// One output and one row.
using Part = float;
using Bytes = const int8_t*;

inline Part no_part() { return 0; }
inline Bytes bytes(const int8_t* codes) { return codes; }
inline Part add(Part part, Bytes weight, const int8_t* row, float scale) {
    int32_t sum = 0;
    for (int i = 0; i < 32; ++i) sum += weight[i] * row[i];
    return part + scale * static_cast<float>(sum);
}
inline float total(Part part) { return part; }

}  // namespace
}  // namespace lanes
