// The vector instructions that the kernels use.
#pragma once

#include "cast.h"
#include "vector_arithmetic.h"
#include "vector_bits.h"
#include "vector_compare.h"
#include "vector_fill.h"
#include "vector_functions.h"
#include "vector_gather.h"
#include "vector_reduce.h"
