/* SPDX-License-Identifier: Apache-2.0 */
/* What grouped products and their gradients share: groups and block scales from tensors. */
#ifndef EJKI_GROUPED_H
#define EJKI_GROUPED_H

#include "operations/matmul/shared/product_call.h"

/* There is a size for every matrix, or more and an offset. */
ejk_status ejki_grouped_check(const ejk_tensor *sizes, const ejk_tensor *offset, mm_size held);
/* Deals an axis of the product out to groups: MM_ROWS or MM_DEPTH. */
void ejki_grouped_split(const ejk_tensor *sizes, const ejk_tensor *offset, mm_size held, int split,
                        mm_product *p);
/* Scales [E,Q,1,N]. */
mm_view ejki_grouped_scale(const ejk_tensor *t);
mm_size ejki_grouped_block(const ejk_tensor *scale, mm_size depth);
ejk_status ejki_grouped_check_scale(const ejk_tensor *scale, mm_size depth);
/* Valid sizes for measuring, of all rows together. */
extern const ejk_input_option ejki_grouped_input_options[1];
ejk_status ejki_grouped_inputs(const ejk_tensor *sizes, int64_t rows, const ejk_inputs *how);

#endif
