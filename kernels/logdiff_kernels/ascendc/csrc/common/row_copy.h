// Rows copied from GM to GM through UB: MTE2 and MTE3 alone, two buffers, so that the next load runs beside a store.
#pragma once

#include "common/row_tiles.h"

namespace ld {

template <class T> class RowCopy {
public:
    // elements: of one buffer. finish() has to follow the last copy.
    LD_FN void init(TPipe& pipe, uint32_t elements) {
        room_ = uint32_t(plan::round_up(elements, 32 / sizeof(T)));
        pipe.InitBuffer(buffer_, uint32_t(2 * room_ * sizeof(T)));
        for (uint32_t i = 0; i < 2; ++i) {
            loaded_[i] = pipe.AllocEventID<HardEvent::MTE2_MTE3>();
            stored_[i] = pipe.AllocEventID<HardEvent::MTE3_MTE2>();
            SetFlag<HardEvent::MTE3_MTE2>(stored_[i]);
        }
    }

    // A free buffer. Fill it by MTE2, then call loaded(), store from it, call stored().
    LD_FN LocalTensor<T> next() {
        now_ = 1 - now_;
        WaitFlag<HardEvent::MTE3_MTE2>(stored_[now_]);
        return buffer_.template GetWithOffset<T>(room_, uint32_t(now_ * room_ * sizeof(T)));
    }
    LD_FN void loaded() {
        SetFlag<HardEvent::MTE2_MTE3>(loaded_[now_]);
        WaitFlag<HardEvent::MTE2_MTE3>(loaded_[now_]);
    }
    LD_FN void stored() { SetFlag<HardEvent::MTE3_MTE2>(stored_[now_]); }

    // rows * length elements (rows on block boundaries) have to fit in a buffer.
    LD_FN void copy(const GlobalTensor<T>& to, int64_t to_stride, const GlobalTensor<T>& from, int64_t from_stride,
                    uint32_t rows, uint32_t length) {
        const uint32_t pitch = uint32_t(plan::round_up(length, 32 / sizeof(T)));
        const LocalTensor<T> buffer = next();
        load_rows(buffer, from, rows, length, from_stride, pitch);
        loaded();
        store_rows(to, buffer, rows, length, to_stride, pitch);
        stored();
    }

    LD_FN void finish() {
        for (uint32_t i = 0; i < 2; ++i) WaitFlag<HardEvent::MTE3_MTE2>(stored_[i]);
    }

private:
    TBuf<TPosition::VECCALC> buffer_;
    uint32_t room_ = 0, now_ = 1;
    TEventID loaded_[2], stored_[2];
};

}  // namespace ld
