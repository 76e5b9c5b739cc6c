// What Python calls: rows are rounded to 8 bits, then tiles of outputs are computed by several threads.
#include "products.h"

namespace edgeflow {
namespace {

constexpr long ROWS_TOGETHER = 16;  // fewer rows are rounded by one thread: the others would be waited for

// The instruction sets, best first, by the names that Python knows; null where this processor lacks one.
const Products* named(int set) {
#if defined(__x86_64__)
    if (set == 0)
        return __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512bw") &&
                       __builtin_cpu_supports("avx512vl")
                   ? &avx512
                   : nullptr;
    if (set == 1)
        return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c")
                   ? &avx2
                   : nullptr;
#endif
    return set == 2 ? &portable : nullptr;
}

// values [m, E]; scratch: m * E bytes of codes, then m * E / 32 scales and m * E / G sums.
struct Call {
    const void* values;
    int8_t* scratch;
    long count, inputs, group;
};

template <class Weight>
void run(const Products& products, void (*product)(const Weight&, const Rows&, const Results&, long),
         const Weight& weight, const Call& call, const Results& results, int threads) {
    const long item = results.kind == Kind::float32 ? 4 : 2, tiles = (results.outputs + TILE - 1) / TILE;
    const long inputs = call.inputs, blocks = inputs / BLOCK, groups = inputs / call.group;
    float* scales = reinterpret_cast<float*>(call.scratch + call.count * inputs);
    float* sums = scales + call.count * blocks;
    const Rows rows{call.scratch, scales, sums, call.count, inputs, call.group};
    const auto quantise = [&](long row) {
        products.quantise(static_cast<const char*>(call.values) + row * inputs * item, results.kind, inputs, call.group,
                          call.scratch + row * inputs, scales + row * blocks, sums + row * groups);
    };
    const bool few = call.count < ROWS_TOGETHER;
    for (long row = 0; few && row < call.count; ++row) quantise(row);
#pragma omp parallel num_threads(threads)
    {
        if (!few) {
#pragma omp for schedule(static)
            for (long row = 0; row < call.count; ++row) quantise(row);
        }
#pragma omp for schedule(static)
        for (long tile = 0; tile < tiles; ++tile) product(weight, rows, results, tile);
    }
}

}  // namespace
}  // namespace edgeflow

using namespace edgeflow;

extern "C" {

int edgeflow_has(int set) { return named(set) != nullptr; }

// kind: of values and results. bias [N] or null.
void edgeflow_int4(int set, int threads, int kind, const uint8_t* codes, const uint16_t* scales, const uint8_t* zeros,
                   const float* bias, const void* values, int8_t* scratch, void* results, long count, long inputs,
                   long outputs, long group) {
    const Products& products = *named(set);
    run(products, products.int4, Int4{codes, scales, zeros}, Call{values, scratch, count, inputs, group},
        Results{results, bias, outputs, static_cast<Kind>(kind)}, threads);
}

void edgeflow_int8(int set, int threads, int kind, const int8_t* codes, const float* scales, const float* bias,
                   const void* values, int8_t* scratch, void* results, long count, long inputs, long outputs,
                   long group) {
    const Products& products = *named(set);
    run(products, products.int8, Int8{codes, scales}, Call{values, scratch, count, inputs, group},
        Results{results, bias, outputs, static_cast<Kind>(kind)}, threads);
}
}
