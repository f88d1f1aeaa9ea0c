/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stdio.h>

#define REAL     float
#define NAME     recurrent_float
#define FN(name) name##f

#include "conformance/recurrent_body.h"
