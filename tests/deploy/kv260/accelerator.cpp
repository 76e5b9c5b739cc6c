// Runs linears through the accelerator. Every stream is offered as early as it can be, those of a later linear while an
// earlier one is being computed, with random pauses. Settings hold only with the last strip of activations.
//
// Standard input: a seed, and on how many of 1000 cycles streams of activations, of weights and of sums pause; then for
// all linears that share activations: steps, macros, strips of activations, and per channel strips of weights and
// blocks; the activations; the weights of each channel. Standard output, for each of these: the cycles in which
// activations, weights of each channel and sums of each channel were first offered, first taken and last taken; the sums
// of each channel. All in words of 32 bits.
#include <array>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <vector>

#include "Vaccelerator.h"

namespace {

constexpr int CHANNELS = 4, STRIP = 4, AFTER = 100;
constexpr uint64_t LONGEST_WAIT = 100000;
using Words = std::vector<uint32_t>;

Words read(size_t count) {
    Words words(count);
    if (std::fread(words.data(), sizeof(uint32_t), count, stdin) != count) std::exit(2);
    return words;
}

void write(const void* words, size_t count) { std::fwrite(words, sizeof(uint32_t), count, stdout); }

struct Times {
    uint32_t offered = 0, first = 0, last = 0;
};

// A stream of strips on its way in or out, part by part. Once valid (in) or ready (out), it stays so until a strip has
// passed.
struct Stream {
    std::vector<Words> parts;
    std::vector<Times> times;
    size_t part = 0, passed = 0;
    bool open = false;

    void add(Words words) { parts.push_back(std::move(words)), times.emplace_back(), skip(); }
    bool done() const { return part == parts.size(); }
    bool at_last() const { return passed + STRIP == parts[part].size(); }
    uint32_t* strip() { return &parts[part][passed]; }

    void skip() {
        while (!done() && passed == parts[part].size()) part++, passed = 0;
    }
    void offer(uint32_t cycle) {
        if (!open && !passed) times[part].offered = cycle;
        open = true;
    }
    void pass(uint32_t cycle) {
        if (!passed) times[part].first = cycle;
        times[part].last = cycle;
        passed += STRIP, open = false;
        skip();
    }
};

struct Settings {
    uint32_t steps, macros;
    uint64_t blocks = 0;
};

class Bench {
  public:
    explicit Bench(const Words& start)
        : random(start[0]), x_pauses(start[1]), weight_pauses(start[2]), sum_pauses(start[3]) {}

    void add(const Words& head) {
        settings.push_back({head[0], head[1]});
        x.add(read(head[2] * STRIP));
        for (int c = 0; c < CHANNELS; c++) {
            const uint32_t strips = head[3 + 2 * c], blocks = head[4 + 2 * c];
            weights[c].add(read(strips * STRIP));
            sums[c].add(Words(2 * blocks * STRIP));
            settings.back().blocks |= uint64_t(blocks) << 16 * c;
            patience += 100 * (strips + blocks);
        }
    }

    void run() {
        top.reset = 1;
        for (int i = 0; i < 4; i++) tick();
        top.reset = 0;
        while (!all_done()) {
            step();
            if (cycle > patience) std::exit(3);
        }
        for (int i = 0; i < AFTER; i++) step();
    }

    void answer() const {
        for (size_t i = 0; i < settings.size(); i++) {
            write(&x.times[i], 3);
            for (const auto& each : weights) write(&each.times[i], 3);
            for (const auto& each : sums) write(&each.times[i], 3);
            for (const auto& each : sums) write(each.parts[i].data(), each.parts[i].size());
        }
    }

  private:
    Vaccelerator top;
    std::mt19937 random;
    uint32_t x_pauses, weight_pauses, sum_pauses, cycle = 0;
    uint64_t patience = LONGEST_WAIT;
    std::vector<Settings> settings;
    Stream x;
    std::array<Stream, CHANNELS> weights, sums;

    void tick() {
        top.clock = 1;
        top.eval();
        top.clock = 0;
        top.eval();
        cycle++;
    }

    void offer(Stream& stream, uint32_t pauses) {
        if (!stream.done() && random() % 1000 >= pauses) stream.offer(cycle);
    }

    void offer_activations() {
        offer(x, x_pauses);
        top.x_valid = x.open;
        top.x_last = x.open && x.at_last();
        top.steps = random() & 31, top.macros = random() & 1023, top.blocks = random();
        if (top.x_last) {
            const Settings& its = settings[x.part];
            top.steps = its.steps, top.macros = its.macros, top.blocks = its.blocks;
        }
        for (int i = 0; i < STRIP && x.open; i++) top.x[i] = x.strip()[i];
    }

    void offer_channels() {
        top.weight_valid = top.sum_ready = 0;
        for (int c = 0; c < CHANNELS; c++) {
            offer(weights[c], weight_pauses);
            offer(sums[c], sum_pauses);
            top.weight_valid |= weights[c].open << c;
            top.sum_ready |= sums[c].open << c;
            for (int i = 0; i < STRIP && weights[c].open; i++) top.weight[STRIP * c + i] = weights[c].strip()[i];
        }
    }

    void step() {
        offer_activations();
        offer_channels();
        top.eval();
        if (top.x_valid && top.x_ready) x.pass(cycle);
        for (int c = 0; c < CHANNELS; c++) {
            if (top.weight_valid & top.weight_ready & 1 << c) weights[c].pass(cycle);
            if (!(top.sum_valid & 1 << c)) continue;
            if (sums[c].done()) std::exit(4);  // more sums than outputs
            if (!sums[c].open) continue;
            for (int i = 0; i < STRIP; i++) sums[c].strip()[i] = top.sum[STRIP * c + i];
            sums[c].pass(cycle);
        }
        tick();
    }

    bool all_done() const {
        for (const auto& each : sums)
            if (!each.done()) return false;
        return true;
    }
};

}  // namespace

int main() {
    Bench bench(read(4));
    Words head(3 + 2 * CHANNELS);
    while (std::fread(head.data(), sizeof(uint32_t), head.size(), stdin) == head.size()) bench.add(head);
    bench.run();
    bench.answer();
}
