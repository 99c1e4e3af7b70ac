#include "parallel.h"

#include <dlfcn.h>
#include <link.h>
#include <pthread.h>

#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <mutex>
#include <thread>
#include <vector>

namespace ld {
namespace {

using GompParallel = void (*)(void (*)(void*), void*, unsigned, unsigned);
using IntFn = int (*)();

struct Runtime {
    GompParallel parallel = nullptr;
    IntFn max_threads = nullptr, thread_num = nullptr, num_threads = nullptr, in_parallel = nullptr;
    bool complete() const { return parallel && max_threads && thread_num && num_threads && in_parallel; }
};

Runtime from_handle(void* handle) {
    Runtime r;
    r.parallel = reinterpret_cast<GompParallel>(dlsym(handle, "GOMP_parallel"));
    r.max_threads = reinterpret_cast<IntFn>(dlsym(handle, "omp_get_max_threads"));
    r.thread_num = reinterpret_cast<IntFn>(dlsym(handle, "omp_get_thread_num"));
    r.num_threads = reinterpret_cast<IntFn>(dlsym(handle, "omp_get_num_threads"));
    r.in_parallel = reinterpret_cast<IntFn>(dlsym(handle, "omp_in_parallel"));
    return r;
}

int visit(dl_phdr_info* info, size_t, void* out) {
    const char* name = info->dlpi_name;
    if (name == nullptr) return 0;
    const char* base = std::strrchr(name, '/');
    base = base ? base + 1 : name;
    if (std::strncmp(base, "libgomp", 7) && std::strncmp(base, "libiomp", 7) && std::strncmp(base, "libomp", 6)) return 0;
    void* handle = dlopen(name, RTLD_LAZY | RTLD_NOLOAD);
    if (handle == nullptr) return 0;
    const Runtime r = from_handle(handle);
    if (!r.complete()) {
        dlclose(handle);
        return 0;
    }
    *static_cast<Runtime*>(out) = r;
    return 1;
}

// Names visible to the whole process first: a preloaded runtime is the one that torch resolved to as well.
Runtime find_runtime() {
    const char* wanted = std::getenv("LOGDIFF_CPU_POOL");
    Runtime r;
    if (wanted != nullptr && std::strcmp(wanted, "threads") == 0) return r;
    r = from_handle(RTLD_DEFAULT);
    if (!r.complete()) {
        r = Runtime();
        dl_iterate_phdr(visit, &r);
    }
    return r.complete() ? r : Runtime();
}

std::atomic<bool> used_runtime{false}, forked{false};

// The runtime's threads don't follow a fork, and a parallel region of the child would wait for them forever: a child of
// a process that had one runs on threads of its own.
const Runtime& runtime() {
    static const Runtime none, found = [] {
        pthread_atfork(nullptr, nullptr, [] { forked = used_runtime.load(); });
        return find_runtime();
    }();
    return forked ? none : found;
}

struct Job {
    void (*job)(void*, int);
    void* context;
    int count;
};

// Without OpenMP. One job at a time; a call while it is busy, or from a worker, runs on the calling thread alone.
class Pool {
public:
    // OMP_NUM_THREADS, else the CPUs that this process may use.
    int size() const {
        static const int count = [] {
            const char* wanted = std::getenv("OMP_NUM_THREADS");
            const int asked = wanted ? std::atoi(wanted) : 0;
            return asked > 0 ? asked : int(std::max(1u, std::thread::hardware_concurrency()));
        }();
        return count;
    }

    void run(const Job& job) {
        std::unique_lock<std::mutex> turn(turn_, std::try_to_lock);
        if (!turn.owns_lock()) {
            serial(job);
            return;
        }
        {
            std::lock_guard<std::mutex> lock(mutex_);
            while (int(workers_.size()) + 1 < job.count) {
                const int index = int(workers_.size()) + 1;
                workers_.emplace_back([this, index] { work(index); });
                workers_.back().detach();
            }
            job_ = job;
            pending_ = job.count - 1;
            ++generation_;
        }
        start_.notify_all();
        inside() = true;
        job.job(job.context, 0);
        inside() = false;
        std::unique_lock<std::mutex> lock(mutex_);
        done_.wait(lock, [this] { return pending_ == 0; });
    }

    static void serial(const Job& job) {
        for (int i = 0; i < job.count; ++i) job.job(job.context, i);
    }

    static bool& inside() {
        thread_local bool value = false;
        return value;
    }

private:
    void work(int index) {
        inside() = true;
        uint64_t seen = 0;
        for (;;) {
            Job job;
            {
                std::unique_lock<std::mutex> lock(mutex_);
                start_.wait(lock, [&] { return generation_ != seen && pending_ > 0; });
                seen = generation_;
                if (index >= job_.count) continue;
                job = job_;
            }
            job.job(job.context, index);
            {
                std::lock_guard<std::mutex> lock(mutex_);
                --pending_;
            }
            done_.notify_one();
        }
    }

    std::mutex turn_, mutex_;
    std::condition_variable start_, done_;
    std::vector<std::thread> workers_;
    Job job_{};
    int pending_ = 0;
    uint64_t generation_ = 0;
};

// Never destroyed: its threads may still wait when the process ends. A forked child makes a new one.
Pool* pool = nullptr;
std::once_flag pool_once;

Pool& the_pool() {
    std::call_once(pool_once, [] {
        pool = new Pool;
        pthread_atfork(nullptr, nullptr, [] { pool = new Pool; });
    });
    return *pool;
}


}  // namespace

int max_threads() {
    const Runtime& r = runtime();
    if (r.complete()) return r.in_parallel() ? 1 : std::max(1, r.max_threads());
    return Pool::inside() ? 1 : the_pool().size();
}

void run_workers(int count, void (*job)(void*, int), void* context) {
    const Runtime& r = runtime();
    Job work{job, context, count};
    if (!r.complete()) {
        the_pool().run(work);
        return;
    }
    used_runtime = true;
    // The runtime may give fewer threads than asked for: each takes every num_threads-th worker.
    r.parallel(
        [](void* opaque) {
            const Job& w = *static_cast<const Job*>(opaque);
            const Runtime& rt = runtime();
            const int step = rt.num_threads();
            for (int i = rt.thread_num(); i < w.count; i += step) w.job(w.context, i);
        },
        &work, unsigned(count), 0u);
}

const char* pool_name() { return runtime().complete() ? "gomp" : "threads"; }

void* scratch_bytes(size_t bytes, int slot) {
    constexpr int kSlots = 16;
    struct Buffers {
        void* data[kSlots] = {};
        size_t size[kSlots] = {};
        ~Buffers() {
            for (void* p : data) std::free(p);
        }
    };
    thread_local Buffers buffers;
    if (slot < 0 || slot >= kSlots) throw std::bad_alloc();
    if (bytes > buffers.size[slot]) {
        const size_t rounded = (bytes + 4095) / 4096 * 4096;
        std::free(buffers.data[slot]);
        buffers.size[slot] = 0;
        buffers.data[slot] = std::aligned_alloc(64, rounded);
        if (buffers.data[slot] == nullptr) throw std::bad_alloc();
        buffers.size[slot] = rounded;
    }
    return buffers.data[slot];
}

}  // namespace ld
