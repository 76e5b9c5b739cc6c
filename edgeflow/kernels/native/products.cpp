// The products of one instruction set. Compiled once for each: LANES is its header, PRODUCTS the name of its table.
#include "products.h"

#include <cmath>
#include <cstring>

#include LANES

namespace edgeflow {
namespace {

constexpr float LEAST = 1e-30f;  // a block of smaller numbers counts as zeros
constexpr float STEPS = 127;

float widened(uint16_t bfloat16) {
    const uint32_t bits = static_cast<uint32_t>(bfloat16) << 16;
    float value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
}

uint16_t rounded_to_bfloat16(float value) {
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    if (value != value) return 0x7fc0;
    return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

// The largest of 32 absolute values: as integers, floats without a sign have the same order.
float largest(const float* values) {
    uint32_t most = 0;
    for (long i = 0; i < BLOCK; ++i) {
        uint32_t bits;
        std::memcpy(&bits, values + i, sizeof bits);
        bits &= 0x7fffffff;
        most = bits > most ? bits : most;
    }
    float size;
    std::memcpy(&size, &most, sizeof size);
    return size;
}

// To the nearest whole number, ties to even: adding 1.5 x 2^23 leaves it in the low bits.
int32_t nearest(float value) {
    const float shifted = value + 12582912.0f;
    int32_t bits;
    std::memcpy(&bits, &shifted, sizeof bits);
    return bits - 0x4b400000;
}

// One block; returns the sum of its codes. A block with a number that is not finite has the scale NaN.
int32_t quantise_block(const float* values, int8_t* codes, float& scale) {
    const float size = largest(values);
    const bool finite = size <= 3.4028234e38f;
    const float steps_per_unit = finite && size > LEAST ? STEPS / size : 0;
    scale = !finite ? NAN : size > LEAST ? size / STEPS : 0;
    int32_t sum = 0;
    for (long i = 0; i < BLOCK; ++i) {
        const int32_t code = nearest(finite ? values[i] * steps_per_unit : 0);
        codes[i] = static_cast<int8_t>(code);
        sum += code;
    }
    return sum;
}

void quantise(const void* values, Kind kind, long inputs, long group, int8_t* codes, float* scales, float* sums) {
    for (long first = 0; first < inputs; first += group) {
        float sum = 0;
        for (long at = first; at < first + group; at += BLOCK) {
            float block[BLOCK];
            if (kind == Kind::float32)
                std::memcpy(block, static_cast<const float*>(values) + at, sizeof block);
            else
                for (long i = 0; i < BLOCK; ++i) block[i] = widened(static_cast<const uint16_t*>(values)[at + i]);
            float& scale = scales[at / BLOCK];
            sum += static_cast<float>(quantise_block(block, codes + at, scale)) * scale;
        }
        sums[first / group] = sum;
    }
}

// Up to 16 results of one row, from output 16 * tile on.
void write(const Results& results, long row, long tile, const float* values) {
    const long first = tile * TILE, left = results.outputs - first, count = left < TILE ? left : TILE;
    const long at = row * results.outputs + first;
    for (long i = 0; i < count; ++i) {
        const float value = results.bias ? values[i] + results.bias[first + i] : values[i];
        if (results.kind == Kind::float32)
            static_cast<float*>(results.values)[at + i] = value;
        else
            static_cast<uint16_t*>(results.values)[at + i] = rounded_to_bfloat16(value);
    }
}

template <int R>
void int4_rows(const Int4& weight, const Rows& rows, const Results& results, long tile, long row) {
    const long inputs = rows.inputs, groups = inputs / rows.group, blocks = inputs / BLOCK;
    const long blocks_per_group = rows.group / BLOCK;
    const uint8_t* packed = weight.codes + tile * inputs * TILE / 2;
    const int8_t* x = rows.codes + row * inputs;
    const float *x_scales = rows.scales + row * blocks, *x_sums = rows.sums + row * groups;
    lanes::Floats sums[R];
    for (auto& each : sums) each = lanes::no_floats();
    for (long group = 0; group < groups; ++group) {
        lanes::Floats steps[R];
        for (auto& each : steps) each = lanes::no_floats();
        for (long block = group * blocks_per_group; block < (group + 1) * blocks_per_group; ++block) {
            lanes::Sums whole[R];
            for (auto& each : whole) each = lanes::no_sums();
            for (long at = block * BLOCK; at < (block + 1) * BLOCK; at += 8) {
                const lanes::Codes codes = lanes::unpack(packed + at * TILE / 2);
                for (int r = 0; r < R; ++r) whole[r] = lanes::add(whole[r], codes, x + r * inputs + at);
            }
            for (int r = 0; r < R; ++r)
                steps[r] = lanes::multiply_add(lanes::floats(whole[r]), lanes::all(x_scales[r * blocks + block]), steps[r]);
        }
        const long at = (tile * groups + group) * TILE;
        const lanes::Floats scale = lanes::of_float16(weight.scales + at), zero = lanes::of_bytes(weight.zeros + at);
        for (int r = 0; r < R; ++r) {
            steps[r] = lanes::multiply_subtract_from(zero, lanes::all(x_sums[r * groups + group]), steps[r]);
            sums[r] = lanes::multiply_add(scale, steps[r], sums[r]);
        }
    }
    for (int r = 0; r < R; ++r) {
        float values[TILE];
        lanes::store(values, sums[r]);
        write(results, row + r, tile, values);
    }
}

template <int R>
void int8_rows(const Int8& weight, const Rows& rows, const Results& results, long tile, long row) {
    const long inputs = rows.inputs, blocks = inputs / BLOCK, first = tile * TILE;
    const long count = results.outputs - first < TILE ? results.outputs - first : TILE;
    const int8_t* x = rows.codes + row * inputs;
    const float* x_scales = rows.scales + row * blocks;
    float values[R][TILE];
    for (long output = 0; output < count; ++output) {
        lanes::Part parts[R];
        for (auto& each : parts) each = lanes::no_part();
        for (long block = 0; block < blocks; ++block) {
            const lanes::Bytes codes = lanes::bytes(weight.codes + (first + output) * inputs + block * BLOCK);
            for (int r = 0; r < R; ++r)
                parts[r] = lanes::add(parts[r], codes, x + r * inputs + block * BLOCK, x_scales[r * blocks + block]);
        }
        for (int r = 0; r < R; ++r) values[r][output] = lanes::total(parts[r]) * weight.scales[first + output];
    }
    for (int r = 0; r < R; ++r) write(results, row + r, tile, values[r]);
}

// All rows of a tile, as many at once as there are registers for; the rest in smaller and smaller parts.
template <int R>
void int4_from(const Int4& weight, const Rows& rows, const Results& results, long tile, long row) {
    for (; row + R <= rows.count; row += R) int4_rows<R>(weight, rows, results, tile, row);
    if constexpr (R > 1) int4_from<R / 2>(weight, rows, results, tile, row);
}

template <int R>
void int8_from(const Int8& weight, const Rows& rows, const Results& results, long tile, long row) {
    for (; row + R <= rows.count; row += R) int8_rows<R>(weight, rows, results, tile, row);
    if constexpr (R > 1) int8_from<R / 2>(weight, rows, results, tile, row);
}

void int4(const Int4& weight, const Rows& rows, const Results& results, long tile) {
    int4_from<lanes::MOST_ROWS>(weight, rows, results, tile, 0);
}

void int8(const Int8& weight, const Rows& rows, const Results& results, long tile) {
    int8_from<lanes::MOST_ROWS>(weight, rows, results, tile, 0);
}

}  // namespace

const Products PRODUCTS = {quantise, int4, int8};

}  // namespace edgeflow
