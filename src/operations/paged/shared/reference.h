/* SPDX-License-Identifier: Apache-2.0 */
#ifndef EJKI_PAGED_REFERENCE_H
#define EJKI_PAGED_REFERENCE_H

#include <ejkernel/status.h>

#include "operations/paged/shared/problem.cuh"

/* Attention of a problem in double precision. OUT_OF_MEMORY. */
ejk_status ejki_paged_reference(const paged_problem *p);

#endif
