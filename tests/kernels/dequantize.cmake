hydrant_test(dequantize_test SOURCES ${CMAKE_CURRENT_LIST_DIR}/dequantize_test.cc DEPS hydrant_dequantize)
