/* SPDX-License-Identifier: Apache-2.0 */
#include "base/base.h"
#include "tensor/owned.h"

#include <ejkernel/gguf.h>

#include <stdlib.h>
#include <string.h>

/* A tensor of a file keeps the file mapped. */
typedef struct file_owner {
    ejki_owner base;
    ejk_safetensors *safetensors;
    ejk_gguf *gguf;
} file_owner;

static void release_file(ejki_owner *self) {
    file_owner *owner = (file_owner *)self;
    ejk_safetensors_close(owner->safetensors);
    ejk_gguf_close(owner->gguf);
    free(owner);
}

static ejk_status load_safetensors(const char *path, const char *name, file_owner *owner,
                                   ejk_tensor *out) {
    EJKI_TRY(ejk_safetensors_open(path, &owner->safetensors));
    return ejk_safetensors_tensor(owner->safetensors, name, out);
}

static ejk_status load_gguf(const char *path, const char *name, file_owner *owner,
                            ejk_tensor *out) {
    EJKI_TRY(ejk_gguf_open(path, &owner->gguf));
    return ejk_gguf_tensor(owner->gguf, name, out);
}

typedef ejk_status loader(const char *path, const char *name, file_owner *owner, ejk_tensor *out);

static const struct form {
    const char *ending;
    loader *load;
} forms[] = {{".safetensors:", load_safetensors}, {".gguf:", load_gguf}};

static ejk_status load_from(loader *load, const char *path, const char *name,
                            ejk_owned_tensor *out) {
    file_owner *owner = malloc(sizeof *owner);
    if (owner == NULL) return ejki_fail(EJK_STATUS_OUT_OF_MEMORY, "no memory for an open file");
    *owner = (file_owner){.base.release = release_file};
    ejk_tensor tensor = {0};
    ejk_status status = load(path, name, owner, &tensor);
    if (status != EJK_OK) {
        release_file(&owner->base);
        return status;
    }
    *out = (ejk_owned_tensor){tensor, &owner->base};
    return EJK_OK;
}

static bool ends_in(const char *text, const char *end) {
    size_t length = strlen(text), end_length = strlen(end);
    return length >= end_length && strcmp(text + length - end_length, end) == 0;
}

ejk_status ejk_tensor_load(const char *spec, ejk_owned_tensor *out) {
    if (spec == NULL || out == NULL) {
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "%s is NULL", spec == NULL ? "spec" : "out");
    }
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
        const char *split = strstr(spec, forms[i].ending);
        if (split == NULL) continue;
        size_t length = (size_t)(split - spec) + strlen(forms[i].ending) - 1;
        char *path = strndup(spec, length);
        if (path == NULL) return ejki_fail(EJK_STATUS_OUT_OF_MEMORY, "no memory for a path");
        ejk_status status = load_from(forms[i].load, path, spec + length + 1, out);
        free(path);
        return status;
    }
    if (ends_in(spec, ".npy")) return ejk_npy_read(spec, out);
    return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                     "'%.200s' names no tensor, expected path.npy, path.safetensors:name or "
                     "path.gguf:name",
                     spec);
}
