/* SPDX-License-Identifier: Apache-2.0 */
#define REAL              long double
#define REAL_EXP          expl
#define REAL_LOG          logl
#define REAL_TANH         tanhl
#define REAL_ABS          fabsl
#define REAL_FMA(a, b, c) ((a) * (b) + (c))
#define REAL_EXACT        1
#define NAME(x)           attention_long_##x
#include "conformance/attention_body.h"
