/* SPDX-License-Identifier: Apache-2.0 */
/* Copies between views on several threads. */
#ifndef EJKI_DEVICE_COPY_H
#define EJKI_DEVICE_COPY_H

#include <ejkernel/device.h>
#include <ejkernel/tensor.h>

/*
 * ejk_tensor_copy() in pieces along one axis; a small copy is made here. For a target that has been checked:
 * each element has a place of its own, apart from the source.
 */
ejk_status ejki_copy(ejk_threads *threads, const ejk_tensor *source, const ejk_tensor *target);

#endif
