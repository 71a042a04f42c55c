# The matrix kernels promise the same bits on every instruction set: no contraction into fused multiply-add except the
# explicit ones. -fno-tree-ter: otherwise GCC moves the additions of an unrolled block behind its last product and
# stores the products until then; a register tile must run in source order. -fno-ipa-modref: GCC 12 took functions that
# write through vector stores for functions without writes and dropped their calls. GCC's AVX-512 headers cause false
# -W[maybe-]uninitialized warnings (GCC bug 105593).
file(GLOB matmul_sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_LIST_DIR}/cpu/matmul/matmul*.cc)
set_property(SOURCE ${matmul_sources} APPEND PROPERTY COMPILE_OPTIONS -ffp-contract=off
             "$<$<CXX_COMPILER_ID:GNU>:-fno-tree-ter;-fno-ipa-modref;-Wno-maybe-uninitialized;-Wno-uninitialized>")
