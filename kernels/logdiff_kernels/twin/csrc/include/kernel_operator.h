// What a kernel includes: CANN's header on an NPU build, this one in the twin.
#pragma once

#include "../core.h"

#if __has_include("../vector.h")
#include "../vector.h"
#endif
#if __has_include("../copy.h")
#include "../copy.h"
#endif
#if __has_include("../cube.h")
#include "../cube.h"
#endif
