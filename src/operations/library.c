/* SPDX-License-Identifier: Apache-2.0 */
/* The context as the public knows it: the empty one, with the library's own parts put in. */
#include "ops/core/context.h"

#include <ejkernel/ejkernel.h>

#include "base/base.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const ejk_kernel *const kernels[] = {
#define EJKI_OPERATION(name) &ejk_##name##_kernel,
#include "operations.inc"
#undef EJKI_OPERATION
};

static ejk_status fill(ejk_context *context) {
    EJKI_TRY(ejk_registry_add_builtin(ejk_context_registry(context)));
    for (size_t i = 0; i < sizeof kernels / sizeof *kernels; i++)
        EJKI_TRY(ejk_context_add_kernel(context, kernels[i]));
    return EJK_OK;
}

/* ---- The chain that chooses where the user brings no chooser of his own ------------------------------ */

typedef struct choice {
    ejk_persistent_cache *persistent; /* NULL: there is no file */
    ejk_tuner *tuner;                 /* NULL: nothing is measured */
    ejk_config_selector_chain *chain;
} choice;

static void close_choice(void *choice_) {
    choice *own = choice_;
    ejk_config_selector_chain_destroy(own->chain);
    ejk_tuner_destroy(own->tuner);
    ejk_persistent_cache_close(own->persistent);
    free(own);
}

/* True if there is a persistent cache at the default path. */
static bool is_cache_there(void) {
    char *path;
    if (ejk_persistent_cache_locate(NULL, &path) != EJK_OK) return false;
    const bool there = access(path, F_OK) == 0;
    ejk_free(path);
    return there;
}

static ejk_status open_choice(choice *own, const ejk_context_options *options) {
    const char *wish = getenv("EJKERNEL_AUTOTUNE_POLICY");
    const bool measures = wish && strcmp(wish, "autotune") == 0;
    ejk_config_selector_options parts = {.policy.allow_autotune = measures ? EJK_TRUE : EJK_UNSET,
                                         .on_event = options->on_event,
                                         .on_event_user = options->on_event_user};
    ejk_config_tuner tuner;
    /* A context that only reads makes no file; one that measures keeps what it finds. */
    if (measures || is_cache_there())
        EJKI_TRY(ejk_persistent_cache_open(
            &(ejk_persistent_options){.on_event = options->on_event,
                                      .on_event_user = options->on_event_user},
            &own->persistent));
    parts.persistent = own->persistent;
    if (measures) {
        EJKI_TRY(ejk_tuner_create(NULL, &own->tuner));
        tuner = ejk_tuner_config_tuner(own->tuner);
        parts.tuner = &tuner;
    }
    return ejk_config_selector_chain_create(&parts, &own->chain);
}

static ejk_status create(const ejk_context_options *options, ejk_context **out) {
    ejk_context_options given = *options;
    ejk_config_chooser chooser;
    choice *own = NULL;
    ejk_status status = EJK_OK;
    if (!given.chooser) {
        own = calloc(1, sizeof *own);
        if (!own) return ejki_fail(EJK_STATUS_OUT_OF_MEMORY, "no memory for a context");
        status = open_choice(own, options);
        chooser = ejk_config_selector_chain_chooser(own->chain);
        given.chooser = &chooser;
    }
    if (status == EJK_OK) status = ejki_context_create(&given, out);
    if (own && status == EJK_OK) ejki_context_own(*out, own, close_choice);
    if (own && status != EJK_OK) close_choice(own);
    return status;
}

ejk_status ejk_context_create(const ejk_context_options *options, ejk_context **out) {
    static const ejk_context_options defaults;
    if (!out)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "out is NULL, expected where to put it");
    ejk_context *context;
    EJKI_TRY(create(options ? options : &defaults, &context));
    ejk_status status = fill(context);
    if (status == EJK_OK)
        *out = context;
    else
        ejk_context_destroy(context);
    return status;
}
