// A second entry `packed_ld_name(record)` of a function: its arguments as one record of 8-byte slots, integers and
// pointers as int64, floats as double. A foreign call costs by the argument; small rows are mostly call.
#pragma once

#include <utility>

#include "dtype.h"

namespace ld {

template <class A> inline A from_slot(const char* slot) {
    if constexpr (std::is_floating_point_v<A>) {
        double value;
        std::memcpy(&value, slot, 8);
        return A(value);
    } else {
        int64_t value;
        std::memcpy(&value, slot, 8);
        if constexpr (std::is_pointer_v<A>)
            return reinterpret_cast<A>(value);
        else
            return A(value);
    }
}

template <class... A, size_t... I>
inline int call_packed(int (*function)(A...), const char* record, std::index_sequence<I...>) {
    return function(from_slot<A>(record + 8 * I)...);
}

template <class... A> inline int call_packed(int (*function)(A...), const void* record) {
    return call_packed(function, static_cast<const char*>(record), std::index_sequence_for<A...>{});
}

}  // namespace ld

#define LD_PACKED(name) \
    LD_API int packed_##name(const void* record) { return ld::call_packed(name, record); }
