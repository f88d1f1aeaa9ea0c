/* SPDX-License-Identifier: Apache-2.0 */
#define REAL              double
#define REAL_EXP          exp
#define REAL_LOG          log
#define REAL_TANH         tanh
#define REAL_ABS          fabs
#define REAL_FMA(a, b, c) fma((a), (b), (c))
#define REAL_EXACT        0
#define NAME(x)           attention_double_##x
#include "conformance/attention_body.h"
