// fp32 tiles that a cube core leaves in GM for the two vector cores of its block.
//
// A ring of slots in the workspace. The cube fills slot after slot through FIX and waits only when all of them are
// taken; the vector cores read each slot through MTE2 and both give it back. Cross-core flags are counters of at most
// 15, so a ring has at most 15 slots.
#pragma once

#include "common/reset.h"
#include "plan/csrc/arch.h"

namespace ld {

constexpr uint8_t kWithinBlock = 2;  // mode of cross-core flags: the cube core and both vector cores of a block

// Ids of the flags of one ring, 0 to 10.
struct RingFlags {
    uint16_t filled, free;
};

// On the cube core:  slot = ring.open();  Fixpipe into it;  ring.close();  after the last one ring.finish(). Several
// slots may be open at a time; they are closed in the order in which they were opened.
class RingWriter {
public:
    LD_FN void init(uint32_t slots, RingFlags flags) {
        slots_ = slots;
        flags_ = flags;
    }
    LD_FN uint32_t open() {
        if (count_ >= slots_) CrossCoreWaitFlag<kWithinBlock, PIPE_FIX>(flags_.free);
        return count_++ % slots_;
    }
    LD_FN void close() { CrossCoreSetFlag<kWithinBlock, PIPE_FIX>(flags_.filled); }
    // Takes the flags that are still to come, so that the next kernel finds none.
    LD_FN void finish() {
        const uint32_t left = uint32_t(plan::least(count_, slots_));
        for (uint32_t i = 0; i < left; ++i) CrossCoreWaitFlag<kWithinBlock, PIPE_FIX>(flags_.free);
    }

private:
    uint32_t slots_ = 1, count_ = 0;
    RingFlags flags_{0, 1};
};

// On each vector core:  slot = ring.open();  copies to UB;  ring.close().
class RingReader {
public:
    LD_FN void init(uint32_t slots, RingFlags flags) {
        slots_ = slots;
        flags_ = flags;
    }
    LD_FN uint32_t open() {
        CrossCoreWaitFlag<kWithinBlock, PIPE_MTE2>(flags_.filled);
        return count_ % slots_;
    }
    LD_FN void close() {
        CrossCoreSetFlag<kWithinBlock, PIPE_MTE2>(flags_.free);
        ++count_;
    }

private:
    uint32_t slots_ = 1, count_ = 0;
    RingFlags flags_{0, 1};
};

}  // namespace ld
