# The Debian package: `scripts/package`, or cpack in a build folder in which all programs are built. Needs dpkg-shlibdeps (dpkg-dev),
# file, and help2man for the man pages.
#
# What a container does without is in the component `debian`, which a plain `cmake --install` leaves out.
set(debian ${PROJECT_SOURCE_DIR}/deploy/debian)
set(PACKAGED COMPONENT debian EXCLUDE_FROM_ALL)

install(TARGETS hydrant_sim RUNTIME ${PACKAGED})
if(TARGET hydrant_eval)  # not without Eigen; scripts/package builds it by name
  install(TARGETS hydrant_eval RUNTIME ${PACKAGED})
endif()
install(FILES ${debian}/hydrantd.service DESTINATION /lib/systemd/system ${PACKAGED})
install(FILES ${debian}/hydrantd.yaml DESTINATION /etc/hydrant ${PACKAGED})
install(FILES ${debian}/copyright DESTINATION share/doc/hydrant ${PACKAGED})
install(FILES ${debian}/lintian-overrides DESTINATION share/lintian/overrides RENAME hydrant ${PACKAGED})
install(DIRECTORY ${PROJECT_SOURCE_DIR}/deploy/grafana ${PROJECT_SOURCE_DIR}/deploy/prometheus
  DESTINATION share/doc/hydrant/examples ${PACKAGED})
# Runs the programs that were installed beside it.
configure_file(${PROJECT_SOURCE_DIR}/cmake/PackagedPages.cmake.in ${PROJECT_BINARY_DIR}/PackagedPages.cmake @ONLY)
install(SCRIPT ${PROJECT_BINARY_DIR}/PackagedPages.cmake ${PACKAGED})

set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME hydrant)
set(CPACK_PACKAGE_CONTACT "The Hydrant authors <hydrant@localhost>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "serves language models over gRPC when memory is short")
set(CPACK_PACKAGE_DESCRIPTION
"A gRPC daemon for language models that keeps the KV cache in small pages,
each of one KV head of one layer, and evicts from them by a policy that every
request chooses. With it come a client for the command line, a load generator,
a laboratory that compares cache policies, and a simulator.")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
# Without the component `cuda`, which has a package of its own.
set(CPACK_INSTALL_CMAKE_PROJECTS
  "${PROJECT_BINARY_DIR};hydrant;Unspecified;/;${PROJECT_BINARY_DIR};hydrant;debian;/")
set(CPACK_STRIP_FILES ON)
set(CPACK_INSTALL_DEFAULT_DIRECTORY_PERMISSIONS
  OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE WORLD_READ WORLD_EXECUTE)

set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION net)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_DEPENDS ca-certificates)
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
file(WRITE ${PROJECT_BINARY_DIR}/conffiles "/etc/hydrant/hydrantd.yaml\n")
set(CPACK_DEBIAN_PACKAGE_CONTROL_EXTRA
  ${debian}/postinst ${debian}/prerm ${debian}/postrm ${PROJECT_BINARY_DIR}/conffiles)
include(CPack)

# The package of the CUDA backend, where it is built: `scripts/package --cuda`, or cpack --config CPackCuda.cmake.
if(TARGET hydrant_cuda)
  set(PACKAGED_CUDA COMPONENT debian_cuda EXCLUDE_FROM_ALL)
  install(FILES ${debian}/cuda.conf DESTINATION /lib/systemd/system/hydrantd.service.d ${PACKAGED_CUDA})
  install(FILES ${debian}/cuda-copyright DESTINATION share/doc/hydrant-cuda RENAME copyright ${PACKAGED_CUDA})
  install(FILES ${debian}/cuda-lintian-overrides DESTINATION share/lintian/overrides RENAME hydrant-cuda ${PACKAGED_CUDA})
  install(CODE "execute_process(COMMAND gzip -9nc ${debian}/changelog
    OUTPUT_FILE \$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/share/doc/hydrant-cuda/changelog.gz COMMAND_ERROR_IS_FATAL ANY)" ${PACKAGED_CUDA})
  configure_file(${PROJECT_SOURCE_DIR}/cmake/CPackCuda.cmake.in ${PROJECT_BINARY_DIR}/CPackCuda.cmake @ONLY)
endif()
