/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stdio.h>

#define REAL     double
#define NAME     recurrent_double
#define FN(name) name

#include "conformance/recurrent_body.h"
