// The cube's instructions that the kernels use.
#pragma once

#include "cube_fixpipe.h"
#include "cube_load.h"
#include "cube_mmad.h"
