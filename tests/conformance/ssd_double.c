/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>

#define REAL     double
#define NAME     ssd_double
#define FN(name) name

#include "conformance/ssd_body.h"
