// Loops over rows on the threads that the process already has.
//
// The OpenMP runtime that torch runs on is found at run time (its GOMP_parallel entry), so its pool, its CPU binding
// and torch.set_num_threads apply here too and no second pool competes for the cores. Without one, a pool of
// std::thread is used. How work is cut never changes a bit: every output has one owner.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <exception>
#include <new>

#include "dtype.h"

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace ld {

// IEEE default arithmetic (nearest even, subnormals kept) for a scope; the thread's own control word comes back after.
class IeeeScope {
public:
#if defined(__x86_64__)
    IeeeScope() : saved_(_mm_getcsr()) { _mm_setcsr(0x1f80u); }
    ~IeeeScope() { _mm_setcsr(saved_); }

private:
    unsigned saved_;
#elif defined(__aarch64__)
    IeeeScope() {
        asm volatile("mrs %0, fpcr" : "=r"(saved_));
        asm volatile("msr fpcr, %0" : : "r"(uint64_t(0)) : "memory");
    }
    ~IeeeScope() { asm volatile("msr fpcr, %0" : : "r"(saved_) : "memory"); }

private:
    uint64_t saved_;
#else
    IeeeScope() {}
#endif
    IeeeScope(const IeeeScope&) = delete;
    IeeeScope& operator=(const IeeeScope&) = delete;
};

// Threads that a loop started on this thread may use; 1 inside a parallel region.
int max_threads();

// Calls job(context, worker) on workers 0 .. count-1, this thread being one of them, and waits.
void run_workers(int count, void (*job)(void*, int), void* context);

// Name of the pool in use: "gomp" (OpenMP runtime of the process) or "threads".
const char* pool_name();

namespace detail {

template <class Body> void fork(int count, const Body& body) {
    struct Context {
        const Body* body;
        std::atomic<bool> failed;
        std::exception_ptr error;
    } context{&body, {false}, nullptr};
    run_workers(
        count,
        [](void* opaque, int worker) {
            Context& c = *static_cast<Context*>(opaque);
            const IeeeScope ieee;
            try {
                (*c.body)(worker);
            } catch (...) {
                if (!c.failed.exchange(true)) c.error = std::current_exception();
            }
        },
        &context);
    if (context.error) std::rethrow_exception(context.error);
}

}  // namespace detail

// fn(begin, end) over 0 .. n-1, cut into at most max_threads() contiguous ranges of at least `grain` items.
template <class Fn> inline void parallel_for(int64_t n, int64_t grain, Fn fn) {
    if (n <= 0) return;
    const int64_t pieces = grain > 0 ? (n + grain - 1) / grain : n;
    const int64_t count = pieces <= 1 ? 1 : std::min<int64_t>(pieces, max_threads());
    if (count <= 1) {
        const IeeeScope ieee;
        fn(int64_t(0), n);
        return;
    }
    detail::fork(int(count), [&](int worker) {
        const int64_t begin = n * worker / count, end = n * (worker + 1) / count;
        if (begin < end) fn(begin, end);
    });
}

// The same for items of uneven cost: workers take the next `grain` items when they are free.
template <class Fn> inline void parallel_dynamic(int64_t n, int64_t grain, Fn fn) {
    if (n <= 0) return;
    const int64_t step = grain > 0 ? grain : 1;
    const int64_t pieces = (n + step - 1) / step;
    const int64_t count = pieces <= 1 ? 1 : std::min<int64_t>(pieces, max_threads());
    if (count <= 1) {
        const IeeeScope ieee;
        fn(int64_t(0), n);
        return;
    }
    std::atomic<int64_t> next{0};
    detail::fork(int(count), [&](int) {
        for (;;) {
            const int64_t begin = next.fetch_add(1) * step;
            if (begin >= n) return;
            fn(begin, std::min(n, begin + step));
        }
    });
}

// Body of an ld_ function: exceptions become status codes, arithmetic outside the loops is IEEE too.
template <class Fn> inline int guard(Fn fn) noexcept {
    const IeeeScope ieee;
    try {
        return fn();
    } catch (const std::bad_alloc&) {
        return kNoMemory;
    } catch (...) {
        return kBadArgument;
    }
}

// Working memory of this thread, 64-byte aligned, kept between calls; `slot` separates buffers that live together.
void* scratch_bytes(size_t bytes, int slot);
template <class T> inline T* scratch(int64_t count, int slot = 0) {
    return static_cast<T*>(scratch_bytes(size_t(count) * sizeof(T), slot));
}

}  // namespace ld
