/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>

#define REAL     long double
#define NAME     ssd_long
#define FN(name) name##l

#include "conformance/ssd_body.h"
