/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writes .npy files. The bytes go to a new file beside the wanted one, which takes its name at the end: a
 * reader sees the old file or the whole new one.
 */
#include "tensor/npy.h"

#include "base/base.h"
#include "tensor/view.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Header and preamble end at a multiple of this, so that the elements can be mapped aligned. */
enum { ALIGNMENT = 64, PREAMBLE = 10 };

/* Eight axes of 19 digits and the keys need less than four times the alignment. */
typedef struct header {
    char bytes[4 * ALIGNMENT];
    size_t size;
} header;

static header make_header(const ejk_tensor *tensor) {
    header made = {.size = PREAMBLE};
    char *text = made.bytes;
    size_t room = sizeof made.bytes;
#define ADD(...) made.size += (size_t)snprintf(text + made.size, room - made.size, __VA_ARGS__)
    ADD("{'descr': '%s', 'fortran_order': False, 'shape': (", ejki_npy_descr(tensor->dtype));
    for (int32_t axis = 0; axis < tensor->rank; axis++) {
        ADD("%s%" PRId64, axis > 0 ? ", " : "", tensor->shape[axis]);
    }
    ADD(tensor->rank == 1 ? ",), }" : "), }");
#undef ADD
    size_t end = (made.size / ALIGNMENT + 1) * ALIGNMENT;
    memset(text + made.size, ' ', end - made.size);
    text[end - 1] = '\n';
    made.size = end;
    memcpy(text, EJKI_NPY_MAGIC "\x01", EJKI_NPY_MAGIC_SIZE + 2);
    text[8] = (char)((end - PREAMBLE) & 0xff);
    text[9] = (char)((end - PREAMBLE) >> 8);
    return made;
}

static bool write_all(int descriptor, const void *bytes, size_t size) {
    for (size_t done = 0; done < size;) {
        ssize_t put = write(descriptor, (const char *)bytes + done, size - done);
        if (put < 0 && errno != EINTR) return false;
        if (put > 0) done += (size_t)put;
    }
    return true;
}

/* A file of a name that nothing has yet, "path.PID.N.tmp"; -1 with errno set if there can be none. */
static int create_beside(char *name, size_t room, const char *path) {
    int descriptor = -1;
    for (int n = 0; n < 1000; n++) {
        snprintf(name, room, "%s.%ld.%d.tmp", path, (long)getpid(), n);
        descriptor = open(name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (descriptor >= 0 || errno != EEXIST) break;
    }
    return descriptor;
}

static ejk_status write_file(const char *path, const ejk_tensor *contiguous) {
    header head = make_header(contiguous);
    size_t size = (size_t)ejk_tensor_count(contiguous) * ejk_dtype_size(contiguous->dtype);
    size_t room = strlen(path) + 64;
    char *name = malloc(room);
    if (name == NULL) return ejki_fail(EJK_STATUS_OUT_OF_MEMORY, "no memory for a file's name");
    int descriptor = create_beside(name, room, path);
    bool created = descriptor >= 0;
    bool written = created && write_all(descriptor, head.bytes, head.size) &&
                   write_all(descriptor, contiguous->data, size);
    int reason = written ? 0 : errno;
    if (created && close(descriptor) != 0 && reason == 0) reason = errno;
    if (reason == 0 && rename(name, path) != 0) reason = errno;
    if (created && reason != 0) unlink(name);
    free(name);
    return reason == 0 ? EJK_OK
                       : ejki_fail(EJK_STATUS_IO, "%s: writing: %s", path, strerror(reason));
}

ejk_status ejk_npy_write(const char *path, const ejk_tensor *tensor) {
    if (path == NULL) return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "path is NULL");
    EJKI_TRY(ejk_tensor_check(tensor, "tensor"));
    EJKI_TRY(ejki_tensor_require_cpu(tensor, "tensor"));
    if (ejki_is_packed(tensor->dtype))
        return ejki_fail(EJK_STATUS_INVALID_DTYPE,
                         "%s: %s lies two in a byte, which .npy has no type for; expected a copy "
                         "as int8, or a view of the bytes as uint8",
                         path, ejk_dtype_name(tensor->dtype));
    /* A bool is copied in any case: the copy holds zeros and ones, and readers rely on that. */
    if (ejk_tensor_is_contiguous(tensor) && tensor->dtype != EJK_DTYPE_BOOL) {
        return write_file(path, tensor);
    }
    ejk_owned_tensor copy = {0};
    EJKI_TRY(ejk_owned_tensor_create(tensor->dtype, tensor->rank, tensor->shape, &copy));
    ejk_status status = ejk_tensor_copy(tensor, &copy.tensor);
    if (status == EJK_OK) status = write_file(path, &copy.tensor);
    ejk_owned_tensor_close(&copy);
    return status;
}
