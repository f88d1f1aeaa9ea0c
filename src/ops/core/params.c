/* SPDX-License-Identifier: Apache-2.0 */
#include <ejkernel/kernel.h>

#define EJK_RECORD_SELF ejk_fwd_params
EJK_RECORD_DEFINE(ejk_fwd_params_record, ejk_fwd_params, EJK_FWD_PARAMS);
#undef EJK_RECORD_SELF

#define EJK_RECORD_SELF ejk_bwd_params
EJK_RECORD_DEFINE(ejk_bwd_params_record, ejk_bwd_params, EJK_BWD_PARAMS);
#undef EJK_RECORD_SELF
