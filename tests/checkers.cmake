# SPDX-License-Identifier: Apache-2.0
# Checks of the tree and of what is built and installed, each as one test.

# ejk_checker(<name> <label> <timeout> <cores> <command>…)
function(ejk_checker name label timeout cores)
  add_test(NAME ${name} COMMAND ${ARGN} WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
  set_tests_properties(${name} PROPERTIES
    SKIP_RETURN_CODE 77 TIMEOUT ${timeout} PROCESSORS ${cores} LABELS ${label})
endfunction()

set(tools ${PROJECT_SOURCE_DIR}/tools)
ejk_checker(layers lint 60 1 ${tools}/check_layers.py)
ejk_checker(seed_names lint 60 1 ${tools}/seed_names.py --check)
ejk_checker(api lint 60 1 ${tools}/api_index.py --check)
ejk_checker(format lint 60 1 ${tools}/check_format.sh)
ejk_checker(tidy lint 1800 2 ${tools}/check_tidy.sh ${PROJECT_BINARY_DIR})
ejk_checker(headers build 60 1 ${CMAKE_CURRENT_SOURCE_DIR}/header/check_headers.sh)
ejk_checker(own_headers build 120 2 ${tools}/check_headers.py ${PROJECT_BINARY_DIR})
ejk_checker(symbols build 60 1 ${tools}/check_symbols.sh $<TARGET_FILE:ejkernel>)
ejk_checker(docs build 120 1 ${tools}/check_docs.sh ${PROJECT_BINARY_DIR})
ejk_checker(install build 120 1 ${tools}/check_install.sh ${PROJECT_BINARY_DIR})
ejk_checker(python build 600 1 ${tools}/check_python.sh ${PROJECT_BINARY_DIR})
ejk_checker(clang build 900 2 ${tools}/check_clang.py ${PROJECT_BINARY_DIR})
ejk_checker(aarch64 build 900 2 ${tools}/check_preset.sh aarch64 ${PROJECT_BINARY_DIR}/aarch64-neon neon)
# ejk_frameworks(<name> <configuration> [<variable>=<value>…]): the package in JAX, PyTorch and transformers, without
# what `python` runs.
function(ejk_frameworks name configuration)
  add_test(NAME ${name} CONFIGURATIONS ${configuration} WORKING_DIRECTORY ${PROJECT_SOURCE_DIR}
    COMMAND ${tools}/check_python.sh ${PROJECT_BINARY_DIR} --frameworks -n 2
            -k "jax or torch or transformers or together or examples or documents")
  set_tests_properties(${name} PROPERTIES
    SKIP_RETURN_CODE 77 TIMEOUT 1800 PROCESSORS 2 LABELS ${configuration} ENVIRONMENT "${ARGN}")
endfunction()
ejk_frameworks(python_frameworks frameworks) # `make check-python`
ejk_frameworks(python_frameworks_full long EJK_TEST_FULL=1)
# What takes both cores has to run before those of one, and what takes minutes of one before the rest.
set_tests_properties(tidy clang aarch64 PROPERTIES COST 900)
set_tests_properties(own_headers python PROPERTIES COST 300)
set_tests_properties(cli cli_bench conformance_attention conformance_flash_attention PROPERTIES COST 200)
