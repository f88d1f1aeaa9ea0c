/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file ejkernel.h
 * All of libejkernel. Each header explains its own room; start with flash_attention.h for a call and
 * kernel.h for a kernel of your own.
 */
#ifndef EJKERNEL_EJKERNEL_H
#define EJKERNEL_EJKERNEL_H

#include <ejkernel/benchmark.h>
#include <ejkernel/context.h>
#include <ejkernel/device.h>
#include <ejkernel/flash_attention.h>
#include <ejkernel/kernel.h>
#include <ejkernel/plan.h>
#include <ejkernel/record.h>
#include <ejkernel/registry.h>
#include <ejkernel/status.h>
#include <ejkernel/tensor.h>
#include <ejkernel/tuning.h>

#endif
