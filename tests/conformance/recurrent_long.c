/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stdio.h>

#define REAL     long double
#define NAME     recurrent_long
#define FN(name) name##l

#include "conformance/recurrent_body.h"
