// What the twin refuses, and how a refusal is reported.
#pragma once

#include <cstdint>
#include <string>

namespace twin {

enum class Pipe : uint8_t { S, V, M, MTE1, MTE2, MTE3, FIX };
constexpr int kPipes = 7;

enum class Check : uint8_t {
  alignment,  // an address that the instruction can't take
  range,      // outside of the tensor, its memory or a GM region
  poison,     // a read of bytes that nothing has written
  race,       // two accesses that no flag, barrier or queue orders
  capacity,   // more on-chip memory than the core has
  queue,      // queue protocol: double alloc, EnQue or free, a foreign tensor, a leak
  flag,       // event or cross-core flag: bad id, set twice, waited for but never set, left set
  deadlock,   // every running core waits
  overload,   // a dtype, shape or form that the real overloads reject, or a pipe that the core lacks
  stride,     // a stride field out of its range
  repeat,     // a repeat count out of its range
  mask,       // a mask out of its range
  state,      // a mode that this kernel never set, so an earlier kernel's would count
  overlap,    // operands that overlap in a way that has no defined result
  launch,     // the launch itself: pointers, block count, kernel kind
};

const char* name_of(Check check);
const char* name_of(Pipe pipe);

struct Failure {
  Check check;
  std::string kernel, core, pipe, op, operand, message;
};

// Ends the launch. Kernel, core, pipe and op are those of the running instruction; `format` is printf's.
[[noreturn]] void fail(Check check, const char* format, ...) __attribute__((format(printf, 2, 3)));
[[noreturn]] void fail_operand(Check check, const char* operand, const char* format, ...)
    __attribute__((format(printf, 3, 4)));

}  // namespace twin
