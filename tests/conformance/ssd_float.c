/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>

#define REAL     float
#define NAME     ssd_float
#define FN(name) name##f

#include "conformance/ssd_body.h"
