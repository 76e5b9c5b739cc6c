// A helper whose core another process has taken holds nobody up before it begins a part. At the end of a parallel region
// of OpenMP every thread of the team must arrive, however little is left to do.
#include "team.h"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <memory>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

namespace edgeflow {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::microseconds SPIN{100};  // how long a thread looks for news before it sleeps or yields

void relax() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

// Whether something comes true while a thread spins.
template <typename Condition>
bool soon(const Condition& condition) {
    for (const auto end = Clock::now() + SPIN; Clock::now() < end;)
        for (int looks = 0; looks < 16; ++looks, relax())
            if (condition()) return true;
    return false;
}

// Each thread has a range of neighbouring parts, and takes over those of the others when its own are taken.
class Job {
   public:
    Job(long count, int threads, const std::function<void(long)>& part)
        : count_(count), part_(part), ranges_(static_cast<size_t>(threads)) {
        for (int range = 0; range < threads; ++range) {
            ranges_[range].next = count * range / threads;
            ranges_[range].end = count * (range + 1) / threads;
        }
    }

    // Of the caller and of each helper that comes; one that finds no range without a thread does nothing.
    void help() {
        const size_t own = joined_.fetch_add(1);
        if (own >= ranges_.size()) return;
        for (size_t step = 0; step < ranges_.size(); ++step) {
            Range& range = ranges_[(own + step) % ranges_.size()];
            for (long at; (at = range.next.fetch_add(1)) < range.end; done_.fetch_add(1)) part_(at);
        }
    }

    // After help: every part is taken by then.
    void wait() const {
        const auto done = [this] { return done_.load() == count_; };
        while (!soon(done)) std::this_thread::yield();
    }

   private:
    struct alignas(64) Range {  // on a cache line, as only its thread touches it for most of the time
        std::atomic<long> next{0};
        long end = 0;
    };
    const long count_;
    const std::function<void(long)>& part_;  // lives until every part is done; a job outlives it in late helpers
    std::vector<Range> ranges_;
    std::atomic<size_t> joined_{0};
    alignas(64) std::atomic<long> done_{0};
};

class Team {
   public:
    void run(const std::shared_ptr<Job>& job, int threads) {
        start(threads - 1);
        {
            const std::lock_guard<std::mutex> lock(mutex_);
            job_ = job;
            number_.fetch_add(1);
        }
        for (int helper = 1; helper < threads; ++helper) jobs_.notify_one();
        job->help();
        job->wait();
    }

    std::mutex calling;  // held by the caller whose job it is

   private:
    // They block all signals: those of the process are for threads that it knows.
    void start(int helpers) {
        if (helpers_ >= helpers) return;
        sigset_t all, before;
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &before);
        for (; helpers_ < helpers; ++helpers_) try {
                std::thread(&Team::serve, this).detach();
            } catch (const std::system_error&) {
                break;  // no more threads: those that are there take over its range
            }
        pthread_sigmask(SIG_SETMASK, &before, nullptr);
    }

    [[noreturn]] void serve() {
        for (long seen = 0;;) {
            const auto another = [this, &seen] { return number_.load() != seen; };
            soon(another);
            std::unique_lock<std::mutex> lock(mutex_);
            jobs_.wait(lock, another);
            seen = number_.load();
            const std::shared_ptr<Job> job = job_;
            lock.unlock();
            job->help();
        }
    }

    std::mutex mutex_;  // of job_ and number_
    std::condition_variable jobs_;
    std::shared_ptr<Job> job_;
    std::atomic<long> number_{0};
    int helpers_ = 0;
};

// Never destroyed: helpers live until the process ends. A fork has none of them, and gets a team of its own.
Team& team() {
    static std::atomic<Team*> present;
    static const int registered = [] {
        const auto make = [] { present = new Team; };
        make();
        return pthread_atfork(nullptr, nullptr, make);
    }();
    static_cast<void>(registered);
    return *present.load();
}

}  // namespace

void share(long count, int threads, const std::function<void(long)>& part) {
    threads = static_cast<int>(std::min<long>(threads, count));
    if (threads > 1) {
        Team& helpers = team();
        const std::unique_lock<std::mutex> calling(helpers.calling, std::try_to_lock);
        if (calling) return helpers.run(std::make_shared<Job>(count, threads, part), threads);
    }
    for (long at = 0; at < count; ++at) part(at);
}

}  // namespace edgeflow
