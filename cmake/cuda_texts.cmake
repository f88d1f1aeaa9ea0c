# SPDX-License-Identifier: Apache-2.0
# Writes a C file with the texts of kernels, which are compiled where a GPU is: -DTEXTS=<files> -DFOLDER=<src>
# -DOUTPUT=<file>. A text's name is its path below FOLDER; by it texts include each other.
set(list "")
foreach(path IN LISTS TEXTS)
  file(READ ${path} text)
  cmake_path(RELATIVE_PATH path BASE_DIRECTORY ${FOLDER} OUTPUT_VARIABLE name)
  string(REPLACE "\\" "\\\\" text "${text}")
  string(REPLACE "\"" "\\\"" text "${text}")
  string(REPLACE "\n" "\\n\"\n     \"" text "${text}")
  string(APPEND list "    {\"${name}\",\n     \"${text}\"},\n")
endforeach()
file(WRITE ${OUTPUT} "/* SPDX-License-Identifier: Apache-2.0 */
/* Written by cmake/cuda_texts.cmake. */
#include \"device/cuda.h\"

const ejki_cuda_source ejki_cuda_texts[] = {
${list}    {0, 0},
};
")
