/* SPDX-License-Identifier: Apache-2.0 */
/* The one thing of this room that a higher one needs: a context before the library's own parts are in. */
#ifndef EJKI_OPS_CORE_CONTEXT_H
#define EJKI_OPS_CORE_CONTEXT_H

#include <ejkernel/context.h>

/* As ejk_context_create(), without kernels and with an empty registry. */
ejk_status ejki_context_create(const ejk_context_options *options, ejk_context **out);

#endif
