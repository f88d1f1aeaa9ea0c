/* SPDX-License-Identifier: Apache-2.0 */
/* What flash_mla and its gradient share: a call becomes a problem. */
#ifndef EJKI_FLASH_MLA_CALL_H
#define EJKI_FLASH_MLA_CALL_H

#include <ejkernel/flash_mla.h>

#include "operations/paged/flash_mla/problem.h"
#include "operations/paged/shared/paged_call.h"

#define MLA_SYMBOLS "B=1,T,N=B,Hq,Hkv=Hq,Dq,Dn=Dq,Dr=0,Dv=Dn,R=512,n=1"

/* Checks what the record cannot say of the inputs, and sizes, strides and scalars of a call. */
ejk_status ejki_mla_prepare(const ejk_flash_mla_args *a, mla_problem *m);
void ejki_mla_bind(const ejk_flash_mla_args *a, mla_problem *m);
/* Of the call; `problem` begins with an mla_problem. */
void ejki_mla_cost(const void *problem, const void *args, ejk_cost *out);
/* Strides of [B,T,heads,D], or of [B,T,D], which all heads share. */
paged_rows ejki_mla_rows(const ejk_tensor *t);

#endif
