// attention_backward of the contract: dQ, dK and dV of packed sequences, every element with one owner, no atomics.
//
// An item of dQ is a tile of 128 packed rows and runs the steps of 512 keys ascending; an item of dK and dV is a tile of
// 128 keys and runs the heads of the group ascending, within a head the blocks of 512 query positions ascending. A step
// or block is a unit; for each the cube core and the two vector cores of a block do
//
//   cube     S(0) S(1) | G(0) S(2) | G(1) S(3) | ...      scores, products: Fixpipe to the workspace
//   vector        W(0) | W(1) A(0) | W(2) A(1) | ...      weights: MTE3 to the workspace
//
//   S(i)  S = Q K^T and dP = dO V^T, 128 x 128 at a time with the Mmads of attention's QK: the same scores
//   W(i)  p = exp1(s - lse), dS = RINT(p (dP - D)), P = RINT(p); +0 where a key isn't seen
//   G(i)  dS K, keys ascending; or dS^T Q and P^T dO, queries ascending; from +0
//   A(i)  added to dQ, or to dK and dV; at the item's end times the scale (not dV), one cast
//
// S runs one unit ahead, also into the next item. Three cross-core flags of mode 2, each set once per unit: scores ready
// (after the last Fixpipe of S), weights ready (both vector cores, after their last MTE3), sums ready (after the last
// Fixpipe of G). The ring of two entries in the workspace needs no flag of its own:
//   scores    are overwritten by S(i+2), which follows G(i) on the cube core, and G(i) had waited for W(i).
//   weights   are overwritten by W(i+2), which follows A(i) on the vector core, and A(i) had waited for G(i).
//   products  are overwritten by G(i+2), which had waited for W(i+2): a vector core announces it after all that it read
//             before, A(i) included, also where it has no row of W(i+2) itself.
//
// lse and D come from attention_backward_dots, started before on the same stream. Nothing waits for another block.
#pragma once

#include "attention_backward_cube.h"
#include "attention_backward_vector.h"

namespace ld {

template <class T>
LD_FN void attention_backward(GM_ADDR q, GM_ADDR k, GM_ADDR v, GM_ADDR dout, GM_ADDR dots, GM_ADDR q_start,
                              GM_ADDR k_start, GM_ADDR k_len, GM_ADDR dq_items, GM_ADDR dkv_items, GM_ADDR dq, GM_ADDR dk,
                              GM_ADDR dv, GM_ADDR workspace, const LdAttentionBackwardPlan& plan) {
    reset_core();
    TPipe pipe;
    GradTables tables;
    tables.set(q_start, k_start, k_len, dq_items, dkv_items);
    if ASCEND_IS_AIC {
        GradCube<T>(plan, pipe, tables).run(q, k, v, dout, workspace);
    } else {
        GradVector<T>(plan, pipe, tables).run(dots, dq, dk, dv, workspace);
    }
}

}  // namespace ld

#define LD_ENTRY(type, name)                                                                                          \
    extern "C" __global__ __aicore__ void ld_attention_backward_##name(                                               \
        GM_ADDR q, GM_ADDR k, GM_ADDR v, GM_ADDR dout, GM_ADDR dots, GM_ADDR q_start, GM_ADDR k_start, GM_ADDR k_len, \
        GM_ADDR dq_items, GM_ADDR dkv_items, GM_ADDR dq, GM_ADDR dk, GM_ADDR dv, GM_ADDR workspace,                   \
        LdAttentionBackwardPlan plan) {                                                                               \
        KERNEL_TASK_TYPE_DEFAULT(KERNEL_TYPE_MIX_AIC_1_2);                                                            \
        ld::attention_backward<type>(q, k, v, dout, dots, q_start, k_start, k_len, dq_items, dkv_items, dq, dk, dv,   \
                                     workspace, plan);                                                                \
    }
LD_ENTRY(bfloat16_t, bfloat16)
LD_ENTRY(half, float16)
#undef LD_ENTRY
