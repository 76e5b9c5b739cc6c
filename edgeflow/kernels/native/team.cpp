// A helper whose core another process has taken holds nobody up before it begins a part. At the end of a parallel region
// of OpenMP every thread of the team must arrive, however little is left to do.
#include "team.h"

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

namespace edgeflow {
namespace {

constexpr int SPINS = 2000;  // looks for a job, tens of microseconds, before a helper sleeps

void relax() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
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

    // thread: 0 for the caller. One that has no range only comes after the others: it does nothing.
    void help(size_t thread) {
        if (thread >= ranges_.size()) return;
        for (size_t step = 0; step < ranges_.size(); ++step) {
            Range& range = ranges_[(thread + step) % ranges_.size()];
            for (long at; (at = range.next.fetch_add(1)) < range.end; done_.fetch_add(1)) part_(at);
        }
    }

    // After help: every part is taken by then.
    void wait() const {
        for (int spins = 0; done_.load() < count_; ++spins)
            if (spins < SPINS)
                relax();
            else
                std::this_thread::yield();
    }

   private:
    struct alignas(64) Range {  // on a cache line, as only its thread touches it for most of the time
        std::atomic<long> next{0};
        long end = 0;
    };
    const long count_;
    const std::function<void(long)>& part_;  // lives until every part is done; a job outlives it in late helpers
    std::vector<Range> ranges_;
    alignas(64) std::atomic<long> done_{0};
};

class Team {
   public:
    void run(Job& job, int threads, const std::shared_ptr<Job>& shared) {
        for (; helpers_ < threads - 1; ++helpers_) try {
                std::thread(&Team::serve, this, helpers_ + 1).detach();
            } catch (const std::system_error&) {
                break;  // no more threads: those that are there take over its range
            }
        {
            const std::lock_guard<std::mutex> lock(mutex_);
            job_ = shared;
            number_.fetch_add(1);
            if (sleeping_) jobs_.notify_all();
        }
        job.help(0);
        job.wait();
    }

    std::mutex calling;  // held by the caller whose job it is

   private:
    [[noreturn]] void serve(size_t thread) {
        for (long seen = 0;;) {
            for (int spins = 0; spins < SPINS && number_.load() == seen; ++spins) relax();
            std::unique_lock<std::mutex> lock(mutex_);
            ++sleeping_;
            jobs_.wait(lock, [&] { return number_.load() != seen; });
            --sleeping_;
            seen = number_.load();
            const std::shared_ptr<Job> job = job_;
            lock.unlock();
            job->help(thread);
        }
    }

    std::mutex mutex_;  // of what follows
    std::condition_variable jobs_;
    std::shared_ptr<Job> job_;
    std::atomic<long> number_{0};  // of the job
    int sleeping_ = 0, helpers_ = 0;
};

}  // namespace

void share(long count, int threads, const std::function<void(long)>& part) {
    static Team& team = *new Team;  // never destroyed: helpers live until the process ends
    if (threads > 1 && count > 1) {
        const std::unique_lock<std::mutex> calling(team.calling, std::try_to_lock);
        if (calling) {
            const auto job = std::make_shared<Job>(count, threads, part);
            team.run(*job, threads, job);
            return;
        }
    }
    for (long at = 0; at < count; ++at) part(at);  // alone; beside another caller too
}

}  // namespace edgeflow
