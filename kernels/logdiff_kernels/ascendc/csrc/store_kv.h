// store_kv: rows (token, head) of new keys and values to their slots of a paged cache, bit for bit.
//
// A vector core has a contiguous part of the tokens. As many rows as a buffer holds are fetched with one copy per token,
// then stored with one copy per token; two buffers, so that MTE2 fetches while MTE3 stores. Tokens of a negative slot
// aren't fetched. Slots are read by the scalar unit. Nothing is computed, so V isn't used.
//
// Events: MTE2_MTE3 (fetched) and MTE3_MTE2 (stored) of ids 0 and 1, one for each buffer.
#pragma once

#include "common/row_tiles.h"
#include "plan/csrc/attention.h"

namespace ld {

template <class T> class StoreKv {
public:
    LD_FN StoreKv(const LdStoreKvPlan& p, TPipe& pipe) : plan_(p) {
        pipe.InitBuffer(buffer_, 2 * plan::kStoreKvBytes);
        for (uint32_t i = 0; i < 2; ++i)
            rows_[i] = buffer_.template GetWithOffset<T>(plan::kStoreKvBytes / uint32_t(sizeof(T)), i * plan::kStoreKvBytes);
    }

    LD_FN void run(GM_ADDR k, GM_ADDR v, GM_ADDR slots, GM_ADDR k_cache, GM_ADDR v_cache) {
        slots_.SetGlobalBuffer(reinterpret_cast<__gm__ int32_t*>(slots));
        const plan::Range part = plan::contiguous_part(plan_.tokens, uint32_t(GetBlockIdx()), plan_.blocks);
        for (int32_t i = 0; i < 2; ++i) SetFlag<HardEvent::MTE3_MTE2>(i);
        store(part, 0, k, k_cache);
        store(part, 1, v, v_cache);
        for (int32_t i = 0; i < 2; ++i) WaitFlag<HardEvent::MTE3_MTE2>(i);
    }

private:
    // All rows of the part of one side. A token's heads are cut where a buffer can't hold them all.
    LD_FN void store(const plan::Range& part, uint32_t side, GM_ADDR source, GM_ADDR cache) {
        GlobalTensor<T> from, to;
        from.SetGlobalBuffer(reinterpret_cast<__gm__ T*>(source));
        to.SetGlobalBuffer(reinterpret_cast<__gm__ T*>(cache));
        const uint32_t dim = plan_.dim[side];
        const uint32_t pitch = uint32_t(plan::round_up(dim * sizeof(T), plan::kBlockBytes) / sizeof(T));
        const uint32_t room = plan::kStoreKvBytes / uint32_t(pitch * sizeof(T));
        const uint32_t heads = uint32_t(plan::least(plan_.heads, room)), tokens = room / heads;
        for (uint32_t token = part.begin; token < part.end; token += tokens) {
            const uint32_t count = uint32_t(plan::least(tokens, part.end - token));
            for (uint32_t head = 0; head < plan_.heads; head += heads) {
                const uint32_t now = uint32_t(plan::least(heads, plan_.heads - head));
                const LocalTensor<T> rows = rows_[turn_];
                WaitFlag<HardEvent::MTE3_MTE2>(turn_);
                for (uint32_t i = 0; i < count; ++i) {
                    if (slots_.GetValue(token + i) < 0) continue;
                    const int64_t at = int64_t(token + i) * plan_.token[side] + int64_t(head) * plan_.head[side];
                    load_rows(rows[i * heads * pitch], from[uint64_t(at)], now, dim, plan_.head[side], pitch);
                }
                SetFlag<HardEvent::MTE2_MTE3>(turn_);
                WaitFlag<HardEvent::MTE2_MTE3>(turn_);
                for (uint32_t i = 0; i < count; ++i) {
                    const int64_t slot = slots_.GetValue(token + i);
                    if (slot < 0) continue;
                    const int64_t at = slot / plan_.block_size * plan_.cache_block[side] +
                                       slot % plan_.block_size * plan_.cache_row[side] +
                                       int64_t(head) * plan_.cache_head[side];
                    store_rows(to[uint64_t(at)], rows[i * heads * pitch], now, dim, plan_.cache_head[side], pitch);
                }
                SetFlag<HardEvent::MTE3_MTE2>(turn_);
                turn_ = 1 - turn_;
            }
        }
    }

    const LdStoreKvPlan& plan_;
    TBuf<TPosition::VECCALC> buffer_;
    LocalTensor<T> rows_[2];
    GlobalTensor<int32_t> slots_;
    int32_t turn_ = 0;
};

}  // namespace ld

#define LD_ENTRY(type, name)                                                                                    \
    extern "C" __global__ __aicore__ void ld_store_kv_##name(GM_ADDR k, GM_ADDR v, GM_ADDR slots, GM_ADDR k_cache, \
                                                             GM_ADDR v_cache, LdStoreKvPlan plan) {             \
        KERNEL_TASK_TYPE_DEFAULT(KERNEL_TYPE_AIV_ONLY);                                                         \
        ld::reset_core();                                                                                       \
        AscendC::TPipe pipe;                                                                                    \
        ld::StoreKv<type>(plan, pipe).run(k, v, slots, k_cache, v_cache);                                       \
    }
LD_ENTRY(float, float32)
LD_ENTRY(half, float16)
#undef LD_ENTRY
