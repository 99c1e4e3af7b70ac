// Cooperating threads of one launch: exactly one runs, and it says itself when another may.
#pragma once

#include <ucontext.h>

#include <cstddef>
#include <functional>

namespace twin {

class Fiber {
 public:
  Fiber();
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  void start(std::function<void()> body);  // prepares; `body` must not throw
  void resume();                           // from the scheduler; returns at the next pause() or at the end
  void pause();                            // from inside
  bool begun() const { return begun_; }
  bool finished() const { return finished_; }
  void recycle() {
    begun_ = finished_ = false;
    body_ = nullptr;
  }

 private:
  static void enter(unsigned high, unsigned low);

  ucontext_t inner_{}, outer_{};
  char* stack_;
  bool begun_ = false, finished_ = false;
  std::function<void()> body_;
  void* inner_fake_ = nullptr;
  void* outer_fake_ = nullptr;
  const void* outer_bottom_ = nullptr;
  size_t outer_size_ = 0;
};

}  // namespace twin
