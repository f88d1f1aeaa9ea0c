/* SPDX-License-Identifier: Apache-2.0 */
#include "base/base.h"
#include "tensor/owned.h"

#include <ejkernel/tensor.h>

#include <stdlib.h>
#include <string.h>

#define SAFETENSORS ".safetensors:"

/* A tensor of a safetensors file keeps the file mapped. */
typedef struct file_owner {
    ejki_owner base;
    ejk_safetensors *file;
} file_owner;

static void release_file(ejki_owner *self) {
    ejk_safetensors_close(((file_owner *)self)->file);
    free(self);
}

static ejk_status load_safetensors(const char *path, const char *name, ejk_owned_tensor *out) {
    file_owner *owner = malloc(sizeof *owner);
    if (owner == NULL) return ejki_fail(EJK_STATUS_OUT_OF_MEMORY, "no memory for an open file");
    *owner = (file_owner){.base.release = release_file};
    ejk_tensor tensor = {0};
    ejk_status status = ejk_safetensors_open(path, &owner->file);
    if (status == EJK_OK) status = ejk_safetensors_tensor(owner->file, name, &tensor);
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
    const char *split = strstr(spec, SAFETENSORS);
    if (split == NULL) {
        if (ends_in(spec, ".npy")) return ejk_npy_read(spec, out);
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                         "'%.200s' names no tensor, expected path.npy or path.safetensors:name",
                         spec);
    }
    size_t length = (size_t)(split - spec) + strlen(SAFETENSORS) - 1;
    char *path = strndup(spec, length);
    if (path == NULL) return ejki_fail(EJK_STATUS_OUT_OF_MEMORY, "no memory for a path");
    ejk_status status = load_safetensors(path, spec + length + 1, out);
    free(path);
    return status;
}
