# The open prompt attention of NVIDIA's cudnn-frontend (MIT) for compute capability 9.0, out of .cache/cudnn-frontend, where
# scripts/fetch-sm90-attention has put two of its headers. Each holds a kernel for one head_dim as text, written for a compiler that
# knows the device alone; so it becomes a cubin, and kernels/cuda/sm90/ loads it.
#
#   HYDRANT_SM90_ATTENTION  AUTO: where the headers are; ON: end where they are not; OFF: without
#
# hydrant_add_sm90_attention(<target>) adds it to the CUDA backend, or what stands in its place.
include(${CMAKE_CURRENT_LIST_DIR}/CutKernel.cmake)

set(HYDRANT_SM90_ATTENTION AUTO CACHE STRING "Prompt attention by wgmma on compute capability 9.0: AUTO, ON or OFF")
set(HYDRANT_SM90_ATTENTION_SOURCE ${PROJECT_SOURCE_DIR}/.cache/cudnn-frontend/1.23.0 CACHE PATH "Two headers of cudnn-frontend")
set(HYDRANT_SM90_SHA256_64 f87c6a92edc12733c21ff00e48695d55879a9d8a8a7d14a4611502607828d51d)
set(HYDRANT_SM90_SHA256_128 c83f65a8fe438f0c77ad4f19e4e3d951eae3ee56e82c8e3ccbd1690c3ede174e)

# What changes: its order of tiles, head by head and short ones first, leaves multiprocessors idle at the end (fastDivMod,
# q_row_coord); and it takes queries from the first key on alone (is_shift_right_bound, shift_right_bound), whose diagonal lies in
# one tile of keys (`- 1`), where that of others may lie in two. A type has to be the C library's. No item may have a semicolon.
set(HYDRANT_SM90_CHANGES
  1 "typedef long long int64_t" "typedef long int64_t"
  2 "constexpr bool is_shift_right_bound = false" "constexpr bool is_shift_right_bound = true"
  2 "const int shift_right_bound = 0" "const int shift_right_bound = actual_seqlen_kv_1 - actual_seqlen_q_1"
  2 "if (kv_loop >= kv_loop_right_bound - 1)" "if (kv_loop >= kv_loop_right_bound - 2)"
  2 "fastDivMod(tiles_r_div_1, rows_temp, head_coord_from_grid_1, q_row_coord)"
    "fastDivMod(tiles_r_div_1, rows_temp, q_row_coord, head_coord_from_grid_1)"
  1 "q_row_coord *= TILE_M_1 * 2" "q_row_coord = ((actual_seqlen_q_1 - 1) / (TILE_M_1 * 2) - q_row_coord) * (TILE_M_1 * 2)"
  1 "q_row_coord = q_row_coord * TILE_M_1 * 2"
    "q_row_coord = ((actual_seqlen_q_1 - 1) / (TILE_M_1 * 2) - q_row_coord) * (TILE_M_1 * 2)")

# hydrant_sm90_headers(<why_not>): empty where both headers are those that the changes were made for.
function(hydrant_sm90_headers why_not)
  set(why "")
  foreach(head_dim 64 128)
    set(header ${HYDRANT_SM90_ATTENTION_SOURCE}/d${head_dim}_fprop_kernel.h)
    if(NOT EXISTS ${header})
      set(why "there is no ${header}: run scripts/fetch-sm90-attention")
      break()
    endif()
    file(SHA256 ${header} sha256)
    if(NOT sha256 STREQUAL HYDRANT_SM90_SHA256_${head_dim})
      set(why "${header} is not the one of version 1.23.0: delete its folder and run scripts/fetch-sm90-attention")
      break()
    endif()
  endforeach()
  set(${why_not} "${why}" PARENT_SCOPE)
endfunction()

function(hydrant_add_sm90_attention target)
  set(why "HYDRANT_SM90_ATTENTION is off")
  if(HYDRANT_SM90_ATTENTION)
    hydrant_sm90_headers(why)
    if(why STREQUAL "" AND NOT "${HYDRANT_CUDA_ARCHITECTURES}" MATCHES "90")
      set(why "HYDRANT_CUDA_ARCHITECTURES is without 90a")
    endif()
    if(NOT why STREQUAL "" AND NOT HYDRANT_SM90_ATTENTION STREQUAL "AUTO")
      message(FATAL_ERROR "HYDRANT_SM90_ATTENTION is on, but ${why}")
    endif()
  endif()
  set(folder ${PROJECT_SOURCE_DIR}/kernels/cuda)
  if(NOT why STREQUAL "")
    message(STATUS "No prompt attention by wgmma: ${why}")
    target_sources(${target} PRIVATE ${folder}/no_sm90_attention.cu)
    return()
  endif()
  find_program(HYDRANT_BIN2C bin2c HINTS ${CUDAToolkit_BIN_DIR} REQUIRED)
  set(made ${CMAKE_CURRENT_BINARY_DIR}/sm90)
  foreach(head_dim 64 128)
    set(kernel ${made}/kernel_${head_dim})
    hydrant_cut_kernel(${HYDRANT_SM90_ATTENTION_SOURCE}/d${head_dim}_fprop_kernel.h ${kernel}.cu ${HYDRANT_SM90_CHANGES})
    add_custom_command(OUTPUT ${kernel}.h
      COMMAND ${PROJECT_SOURCE_DIR}/cmake/keep-resources ${CMAKE_CUDA_COMPILER} -cubin -w -arch=sm_90a -Xptxas=-v
              ${kernel}.cu -o ${kernel}.cubin
      COMMAND ${HYDRANT_BIN2C} --const --type longlong --name kSm90Kernel${head_dim} ${kernel}.cubin > ${kernel}.h
      DEPENDS ${kernel}.cu BYPRODUCTS ${kernel}.cubin ${kernel}.cubin.resources
      COMMENT "Compiling the prompt attention of cudnn-frontend for head_dim ${head_dim}" VERBATIM)
    list(APPEND headers ${kernel}.h)
  endforeach()
  target_sources(${target} PRIVATE ${folder}/sm90/attention.cu ${folder}/sm90/check.cu ${headers})
  target_include_directories(${target} PRIVATE ${made})
endfunction()
