/* SPDX-License-Identifier: Apache-2.0 */
/* What the row-wise kernel takes without measuring. */
#ifndef EJKI_ROW_CONFIG_H
#define EJKI_ROW_CONFIG_H

#include "operations/attention/flash/problem.h"

#include <ejkernel/params.h>

/* `pairs`: products are of pairs of bf16. */
void ejki_row_heuristic(const ejki_flash_problem *p, bool pairs, ejk_fwd_params *params);

#endif
