// Runs linears through the accelerator, one after the other, with random pauses on every stream.
//
// Standard input: a seed, and on how many of 1000 cycles streams in and streams of sums pause; then per linear: steps,
// macros, strips of activations, and per channel strips of weights and of sums; the activations; the weights of each
// channel. Standard output, per linear: the cycles of each channel (first and last strip of weights taken, first and
// last strip of sums taken); the sums of each channel. All in words of 32 bits.
#include <array>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <vector>

#include "Vaccelerator.h"

namespace {

constexpr int CHANNELS = 4, STRIP = 4, LONGEST_WAIT = 100000;
using Words = std::vector<uint32_t>;

Words read(size_t count) {
    Words words(count);
    if (std::fread(words.data(), sizeof(uint32_t), count, stdin) != count) std::exit(2);
    return words;
}

// A stream of strips on its way in or out. Once valid (in) or ready (out), it stays so until a strip has passed.
struct Stream {
    Words words;
    size_t passed = 0;
    bool open = false;

    bool done() const { return passed == words.size(); }
    void pass() { passed += STRIP, open = false; }
};

struct Cycles {
    uint32_t first_weight = 0, last_weight = 0, first_sum = 0, last_sum = 0;
};

class Bench {
  public:
    Bench(uint32_t seed, uint32_t in, uint32_t out) : random(seed), pauses_in(in), pauses_out(out) {
        top.reset = 1;
        for (int i = 0; i < 4; i++) tick();
        top.reset = 0;
    }

    void run_linear(const Words& head) {
        top.steps = head[0];
        top.macros = head[1];
        Stream x{read(head[2] * STRIP)};
        std::array<Stream, CHANNELS> weights, sums;
        for (int c = 0; c < CHANNELS; c++) sums[c].words.resize(head[4 + 2 * c] * STRIP);
        for (int c = 0; c < CHANNELS; c++) weights[c].words = read(head[3 + 2 * c] * STRIP);
        while (!x.done()) send_activations(x);
        std::array<Cycles, CHANNELS> cycles;
        for (uint32_t start = cycle; !all_done(sums);) {
            stream(weights, sums, cycles);
            if (cycle - start > LONGEST_WAIT + 100 * weights[0].words.size()) std::exit(3);
        }
        for (const auto& each : cycles) std::fwrite(&each, sizeof each, 1, stdout);
        for (const auto& each : sums) std::fwrite(each.words.data(), sizeof(uint32_t), each.words.size(), stdout);
    }

  private:
    Vaccelerator top;
    std::mt19937 random;
    uint32_t pauses_in, pauses_out, cycle = 0;

    bool goes(uint32_t pauses) { return random() % 1000 >= pauses; }

    void tick() {
        top.clock = 1;
        top.eval();
        top.clock = 0;
        top.eval();
        cycle++;
    }

    void send_activations(Stream& x) {
        x.open = x.open || goes(pauses_in);
        top.x_valid = x.open;
        top.x_last = x.passed + STRIP == x.words.size();
        for (int i = 0; i < STRIP; i++) top.x[i] = x.words[x.passed + i];
        top.eval();
        const bool passes = top.x_valid && top.x_ready;
        tick();
        if (passes) x.pass();
        top.x_valid = 0;
    }

    void stream(std::array<Stream, CHANNELS>& weights, std::array<Stream, CHANNELS>& sums,
                std::array<Cycles, CHANNELS>& cycles) {
        top.weight_valid = top.sum_ready = 0;
        for (int c = 0; c < CHANNELS; c++) {
            weights[c].open = !weights[c].done() && (weights[c].open || goes(pauses_in));
            sums[c].open = sums[c].open || goes(pauses_out);
            top.weight_valid |= weights[c].open << c;
            top.sum_ready |= sums[c].open << c;
            for (int i = 0; i < STRIP && weights[c].open; i++)
                top.weight[STRIP * c + i] = weights[c].words[weights[c].passed + i];
        }
        top.eval();
        for (int c = 0; c < CHANNELS; c++) {
            if (top.weight_valid & top.weight_ready & 1 << c) {
                if (!weights[c].passed) cycles[c].first_weight = cycle;
                cycles[c].last_weight = cycle;
                weights[c].pass();
            }
            if (top.sum_valid & top.sum_ready & 1 << c) {
                if (sums[c].done()) std::exit(4);  // more sums than outputs
                if (!sums[c].passed) cycles[c].first_sum = cycle;
                cycles[c].last_sum = cycle;
                for (int i = 0; i < STRIP; i++) sums[c].words[sums[c].passed + i] = top.sum[STRIP * c + i];
                sums[c].pass();
            }
        }
        tick();
    }

    static bool all_done(const std::array<Stream, CHANNELS>& streams) {
        for (const auto& each : streams)
            if (!each.done()) return false;
        return true;
    }
};

}  // namespace

int main() {
    const Words settings = read(3);
    Bench bench(settings[0], settings[1], settings[2]);
    Words head(3 + 2 * CHANNELS);
    while (std::fread(head.data(), sizeof(uint32_t), head.size(), stdin) == head.size()) bench.run_linear(head);
}
