// The twin's core: everything of the API that is not an instruction's arithmetic.
//
// For those who write instructions (vector.h, copy.h, cube.h):
//
//   template <typename T>
//   void Add(const LocalTensor<T>& dst, const LocalTensor<T>& a, const LocalTensor<T>& b, const int32_t& count) {
//     twin::Op op("Add", twin::Pipe::V, count);               // fails on a core without that pipe
//     const twin::Operand d = dst.operand().named("dst"), ...;
//     op.align(d); op.align(x); op.align(y);                  // memory's own boundary, or align(operand, bytes)
//     const auto* x = op.read(..., 0, count * sizeof(T));     // reads first: range and poison are checked here
//     auto* out = op.write(d, 0, count * sizeof(T));          // then writes: marks the bytes as written
//     ...compute...                                           // in repeat order, through memcpy or typed pointers
//   }                                                         // ~Op: races are checked, the trace record written
//
//   twin::fail(Check, "printf format", ...) and twin::fail_operand(Check, "dst", ...) end the launch with an error.
//   twin::state() holds mask, atomic, saturation and HF32 modes; `.get()` fails if this kernel never set the mode.
//   twin::options() holds what the launch chose: Mmad model, Exp/Ln perturbation.
//   A write to GM has to honour twin::state().atomic.get().
//
// For those who write kernels: include "kernel_operator.h"; docs/twin.md says what is checked.
#pragma once

#include "check.h"
#include "launch.h"
#include "memory.h"
#include "modes.h"
#include "op.h"
#include "queue.h"
#include "state.h"
#include "sync.h"
#include "tensor.h"
#include "types.h"
