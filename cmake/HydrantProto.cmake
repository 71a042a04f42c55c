# hydrant_proto_library(<name> PROTOS a.proto ... GRPC_PROTOS b.proto ...): a static library of the generated messages and,
# for GRPC_PROTOS, services. Paths are relative to the calling folder, which is the import root; generated headers are
# included by the same path ("hydrant/v1/hydrant.pb.h"). protobuf_generate() of CMake 3.25 drops plugin options and does
# not follow imports; here protoc writes a dependency file that ninja reads.

function(hydrant_proto_library name)
  cmake_parse_arguments(ARG "" "" "PROTOS;GRPC_PROTOS" ${ARGN})
  set(root ${CMAKE_CURRENT_SOURCE_DIR})
  set(out ${CMAKE_CURRENT_BINARY_DIR}/generated)
  set(sources)
  file(MAKE_DIRECTORY ${out})

  foreach(proto ${ARG_PROTOS} ${ARG_GRPC_PROTOS})
    string(REGEX REPLACE "\\.proto$" "" stem ${proto})
    set(outputs ${out}/${stem}.pb.cc ${out}/${stem}.pb.h)
    set(grpc_options)
    if(proto IN_LIST ARG_GRPC_PROTOS)
      # The dependency file names the first output, which must be the first of OUTPUT too.
      list(PREPEND outputs ${out}/${stem}.grpc.pb.cc)
      list(APPEND outputs ${out}/${stem}.grpc.pb.h)
      set(grpc_options --grpc_out=${out} --plugin=protoc-gen-grpc=$<TARGET_FILE:gRPC::grpc_cpp_plugin>)
    endif()
    get_filename_component(folder ${out}/${stem} DIRECTORY)
    file(MAKE_DIRECTORY ${folder})
    add_custom_command(
      OUTPUT ${outputs}
      COMMAND protobuf::protoc -I ${root} ${grpc_options} --cpp_out=${out}
              --dependency_out=${out}/${stem}.d ${root}/${proto}
      DEPENDS ${root}/${proto} protobuf::protoc
      DEPFILE ${out}/${stem}.d
      COMMENT "protoc ${proto}"
      VERBATIM)
    foreach(file ${outputs})
      if(file MATCHES "\\.cc$")
        list(APPEND sources ${file})
      endif()
    endforeach()
  endforeach()

  add_library(${name} STATIC ${sources})
  target_include_directories(${name} SYSTEM PUBLIC ${out})
  target_compile_options(${name} PRIVATE -w)
  # Unity-build the services only: the generated message sources of two files define the same file-local names.
  set(messages ${sources})
  list(FILTER messages EXCLUDE REGEX "\\.grpc\\.pb\\.cc$")
  hydrant_optimize(${name} 2)
  hydrant_unity(${name} ${messages})
  if(HYDRANT_SANITIZE)
    target_compile_options(${name} PUBLIC -fsanitize=${HYDRANT_SANITIZE} -fno-omit-frame-pointer)
    target_link_options(${name} PUBLIC -fsanitize=${HYDRANT_SANITIZE})
  endif()
  set_target_properties(${name} PROPERTIES POSITION_INDEPENDENT_CODE ON)
  target_link_libraries(${name} PUBLIC gRPC::grpc++ protobuf::libprotobuf)
endfunction()
