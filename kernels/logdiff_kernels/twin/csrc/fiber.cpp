#include "fiber.h"

#include <sys/mman.h>

#include <cstdint>
#include <cstdlib>
#include <new>
#include <utility>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

namespace twin {

namespace {

constexpr size_t kStack = 1 << 20, kGuard = 1 << 16;

}  // namespace

Fiber::Fiber() {
  constexpr int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  void* memory = mmap(nullptr, kStack + kGuard, PROT_READ | PROT_WRITE, flags, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  mprotect(memory, kGuard, PROT_NONE);
  stack_ = static_cast<char*>(memory);
}

Fiber::~Fiber() {
#if defined(__SANITIZE_ADDRESS__)
  __asan_unpoison_memory_region(stack_ + kGuard, kStack);
#endif
  munmap(stack_, kStack + kGuard);
}

void Fiber::start(std::function<void()> body) {
  body_ = std::move(body);
  begun_ = finished_ = false;
  getcontext(&inner_);
  inner_.uc_stack.ss_sp = stack_ + kGuard;
  inner_.uc_stack.ss_size = kStack;
  inner_.uc_link = nullptr;
  const auto self = reinterpret_cast<uintptr_t>(this);
  makecontext(&inner_, reinterpret_cast<void (*)()>(&Fiber::enter), 2, static_cast<unsigned>(self >> 32),
              static_cast<unsigned>(self & 0xffffffffu));
}

void Fiber::enter(unsigned high, unsigned low) {
  auto* self = reinterpret_cast<Fiber*>((static_cast<uintptr_t>(high) << 32) | low);
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(nullptr, &self->outer_bottom_, &self->outer_size_);
#endif
  self->body_();
  self->finished_ = true;
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(nullptr, self->outer_bottom_, self->outer_size_);
#endif
  setcontext(&self->outer_);
  std::abort();
}

void Fiber::resume() {
  begun_ = true;
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(&outer_fake_, stack_ + kGuard, kStack);
#endif
  swapcontext(&outer_, &inner_);
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(outer_fake_, nullptr, nullptr);
#endif
}

void Fiber::pause() {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(&inner_fake_, outer_bottom_, outer_size_);
#endif
  swapcontext(&inner_, &outer_);
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(inner_fake_, &outer_bottom_, &outer_size_);
#endif
}

}  // namespace twin
