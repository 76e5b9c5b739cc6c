// Runs the arithmetic units: a record of inputs per cycle from standard input, a record of outputs to standard output.
#include <cstdint>
#include <cstdio>

#include "Vunits.h"

struct Inputs {
    uint32_t a, b;
    uint16_t half;
    uint8_t integer, turn;
};

int main() {
    Vunits units;
    Inputs in;
    while (std::fread(&in, sizeof in, 1, stdin) == 1) {
        units.a = in.a;
        units.b = in.b;
        units.half = in.half;
        units.integer_in = in.integer;
        units.turn = in.turn;
        units.clock = 0;
        units.eval();
        const uint32_t out[] = {units.product, units.sum, units.single, units.element};
        std::fwrite(out, sizeof out, 1, stdout);
        units.clock = 1;
        units.eval();
    }
}
