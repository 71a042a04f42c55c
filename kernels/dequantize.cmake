# A library of its own: loaders and tests need it without any backend.
hydrant_library(hydrant_dequantize OPTIMIZE 3
                SOURCES ${CMAKE_CURRENT_LIST_DIR}/dequantize.cc ${CMAKE_CURRENT_LIST_DIR}/quantize.cc DEPS)
# The same bits on every machine: no contraction into fused multiply-add.
target_compile_options(hydrant_dequantize PRIVATE -ffp-contract=off)
