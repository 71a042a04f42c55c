# The matrix kernels promise the same bits on every instruction set: no contraction into fused multiply-add beyond what
# they spell out. GCC would move the additions of an unrolled block behind its last product (tree-ter) and has to store
# the products until then: a register tile is to run in the order in which it is written. GCC 12 took functions that write
# through vector stores for such as write nothing, and left out their calls (ipa-modref). GCC's AVX-512 headers set off
# false alarms of -W[maybe-]uninitialized (GCC bug 105593).
file(GLOB matmul_sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_LIST_DIR}/cpu/matmul/matmul*.cc)
set_property(SOURCE ${matmul_sources} APPEND PROPERTY COMPILE_OPTIONS -ffp-contract=off
             "$<$<CXX_COMPILER_ID:GNU>:-fno-tree-ter;-fno-ipa-modref;-Wno-maybe-uninitialized;-Wno-uninitialized>")
