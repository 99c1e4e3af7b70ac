// attention of the contract: training over packed sequences, prefill, chunked prefill and paged decode in one body.
//
// An item is a tile of 128 packed rows (token by token, within a token the query heads of one KV head) and its chunks of
// 4096 keys; a block takes items boustrophedon from a table sorted by cost. For each step of 512 keys, at absolute
// positions, the cube core and the two vector cores of a block (half of the rows each) do
//
//   cube     QK(0) QK(1) | QK(2) PV(0) | QK(3) PV(1) | QK(4) PV(2) | ...      S and PV: Fixpipe to the workspace
//   vector               | SM(0)       | SM(1) RS(0) | SM(2) RS(1) | ...      P: MTE3 to the workspace
//
//   QK(i)  S = Q K^T of step i, 128 keys at a time: 128 x 128 Mmads over the head size, only sub-tiles that a row sees
//   SM(i)  scale, cap, selection, m, p, R64(p), P = RINT(p), c, l
//   PV(i)  P V of step i from +0, keys ascending, pv_n value dimensions at a time
//   RS(i)  O = O c + PV; at the end of a chunk the combination with the chunks before, at the end of an item the result
//
// QK runs two steps ahead, also into the next item, so the cube core waits for P(i) only when a vector core needs longer
// than two steps of the cube core. Three cross-core flags of mode 2, set once per step: scores ready (after QK's last
// Fixpipe), weights ready (both vector cores, after their last MTE3), sums ready (after PV's last Fixpipe).
//
// The ring of three entries in the workspace needs no flag of its own:
//   S(i)  is overwritten by QK(i+3), which follows PV(i) on the cube core, and PV(i) had waited for P(i): S(i) was read.
//   P(i)  is overwritten by SM(i+3), which follows RS(i) on the vector core, and RS(i) had waited for PV(i): P(i) was read.
//   PV(i) is overwritten by PV(i+3), which had waited for P(i+3), and SM(i+3) follows RS(i): PV(i) was read.
//
// Few row tiles over many keys: the table cuts them at their chunks, each item leaves (m, l, O) of its chunk in the
// workspace, and the kernel attention_combine, started behind this one on the same stream, puts them together,
// ascending. Nothing waits for another block, so any number of blocks may run on any number of cores.
//
// On 950 the same path through GM is used; L0C -> UB and UB -> L1 aren't (plan.direct is 0).
#pragma once

#include "attention_cube.h"
#include "attention_vector.h"

namespace ld {

template <class T>
LD_FN void attention(GM_ADDR q, GM_ADDR k, GM_ADDR v, GM_ADDR sinks, GM_ADDR q_start, GM_ADDR k_start, GM_ADDR k_len,
                     GM_ADDR block_table, GM_ADDR items, GM_ADDR out, GM_ADDR lse, GM_ADDR workspace,
                     const LdAttentionPlan& plan) {
    reset_core();
    TPipe pipe;
    AttentionTables tables;
    tables.set(q_start, k_start, k_len, block_table, items);
    if ASCEND_IS_AIC {
        AttentionCube<T>(plan, pipe, tables).run(q, k, v, workspace);
    } else {
        AttentionVector<T>(plan, pipe, tables).run(out, lse, sinks, workspace);
    }
}

}  // namespace ld

#define LD_ENTRY(type, name)                                                                                          \
    extern "C" __global__ __aicore__ void ld_attention_##name(                                                        \
        GM_ADDR q, GM_ADDR k, GM_ADDR v, GM_ADDR sinks, GM_ADDR q_start, GM_ADDR k_start, GM_ADDR k_len,              \
        GM_ADDR block_table, GM_ADDR items, GM_ADDR out, GM_ADDR lse, GM_ADDR workspace, LdAttentionPlan plan) {      \
        KERNEL_TASK_TYPE_DEFAULT(KERNEL_TYPE_MIX_AIC_1_2);                                                            \
        ld::attention<type>(q, k, v, sinks, q_start, k_start, k_len, block_table, items, out, lse, workspace, plan);  \
    }
LD_ENTRY(bfloat16_t, bfloat16)
LD_ENTRY(half, float16)
#undef LD_ENTRY
