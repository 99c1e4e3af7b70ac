// Flags, barriers and where a core finds itself.
#pragma once

#include <cstdint>

#include "check.h"
#include "types.h"

namespace twin {

void set_flag(AscendC::HardEvent event, int id);
void wait_flag(AscendC::HardEvent event, int id);
void pipe_barrier(pipe_t pipe);
void cross_core_set(uint8_t mode, pipe_t pipe, uint16_t flag);
void cross_core_wait(uint8_t mode, pipe_t pipe, uint16_t flag);
void sync_all(bool vector_only);
int fetch_event_id(AscendC::HardEvent event);
int alloc_event_id(AscendC::HardEvent event);
void release_event_id(AscendC::HardEvent event, int id);
void check_kind(KernelMetaType kind);

bool on_cube_core();
int64_t block_index();  // as GetBlockIdx: on a vector core of a mixed kernel 2 * group + sub-block
int64_t block_count();
int64_t sub_block_index();
int64_t sub_block_count();

}  // namespace twin

#define ASCEND_IS_AIC (twin::on_cube_core())
#define ASCEND_IS_AIV (!twin::on_cube_core())
#define KERNEL_TASK_TYPE_DEFAULT(kind) twin::check_kind(kind)

namespace AscendC {

template <HardEvent event>
void SetFlag(int32_t id) {
  twin::set_flag(event, id);
}
template <HardEvent event>
void WaitFlag(int32_t id) {
  twin::wait_flag(event, id);
}
template <pipe_t pipe>
void PipeBarrier() {
  twin::pipe_barrier(pipe);
}
template <uint8_t mode, pipe_t pipe>
void CrossCoreSetFlag(uint16_t flag) {
  twin::cross_core_set(mode, pipe, flag);
}
template <uint8_t mode = 0, pipe_t pipe = PIPE_S>
void CrossCoreWaitFlag(uint16_t flag) {
  twin::cross_core_wait(mode, pipe, flag);
}
template <bool vector_only = true>
void SyncAll() {
  twin::sync_all(vector_only);
}

inline int64_t GetBlockIdx() { return twin::block_index(); }
inline int64_t GetBlockNum() { return twin::block_count(); }
inline int64_t GetSubBlockIdx() { return twin::sub_block_index(); }
inline int64_t GetSubBlockNum() { return twin::sub_block_count(); }
inline int64_t GetTaskRatio() { return twin::on_cube_core() ? 1 : twin::sub_block_count(); }

}  // namespace AscendC
