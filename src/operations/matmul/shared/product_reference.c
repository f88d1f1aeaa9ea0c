/* SPDX-License-Identifier: Apache-2.0 */
/* Matrix products in double precision: a line of its own for what is shared with layers of experts. */
#include "operations/matmul/shared/product_reference_body.h"
