// Products of rows in 8 bits with weights of 4 and 8 bits. The layouts are those of edgeflow/kernels/native/*.py.
#pragma once
#include <cstdint>

namespace edgeflow {

constexpr long BLOCK = 32;  // inputs of a row that share a scale
constexpr long TILE = 16;   // outputs that are computed together

enum class Kind : int32_t { float32 = 0, bfloat16 = 1 };  // of rows and results

// m rows of E inputs: codes [m, E] from -127 to 127, each times the scale [m, E / 32] of its block.
struct Rows {
    const int8_t* codes;
    const float* scales;
    const float* sums;  // [m, E / G]: of the values of each group
    long count, inputs, group;
};

// codes [N / 16, E / 8, 16, 4]: a byte has input j of 8 in its low nibble and 4 + j in its high one, j from 0 to 3.
// scales float16 [N / 16, E / G, 16], zeros [N / 16, E / G, 16].
struct Int4 {
    const uint8_t* codes;
    const uint16_t* scales;
    const uint8_t* zeros;
};

// codes [N, E] from -127 to 127, scales [N].
struct Int8 {
    const int8_t* codes;
    const float* scales;
};

// Results [m, N] of a kind; bias [N] or null.
struct Results {
    void* values;
    const float* bias;
    long outputs;
    Kind kind;
};

// The functions that an instruction set has.
struct Products {
    void (*quantise)(const void* values, Kind kind, long inputs, long group, int8_t* codes, float* scales, float* sums);
    void (*int4)(const Int4&, const Rows&, const Results&, long tile);
    void (*int8)(const Int8&, const Rows&, const Results&, long tile);
};

extern const Products avx512, avx2, portable;

}  // namespace edgeflow
