/* SPDX-License-Identifier: Apache-2.0 */
#define REAL              float
#define REAL_EXP          expf
#define REAL_LOG          logf
#define REAL_TANH         tanhf
#define REAL_ABS          fabsf
#define REAL_FMA(a, b, c) fmaf((a), (b), (c))
#define REAL_EXACT        0
#define NAME(x)           attention_float_##x
#include "conformance/attention_body.h"
