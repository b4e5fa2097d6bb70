# The installed package: find_package(nibble). Rooms add their targets to the export set nibble-targets.
include(CMakePackageConfigHelpers)

set(nibble_package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/nibble)
install(EXPORT nibble-targets NAMESPACE nibble:: DESTINATION ${nibble_package_dir})
configure_package_config_file(deploy/cmake/nibble-config.cmake.in ${PROJECT_BINARY_DIR}/nibble-config.cmake
  INSTALL_DESTINATION ${nibble_package_dir})
# Before 1.0 a minor version may change interfaces.
write_basic_package_version_file(${PROJECT_BINARY_DIR}/nibble-config-version.cmake
  COMPATIBILITY SameMinorVersion)
install(FILES
  ${PROJECT_BINARY_DIR}/nibble-config.cmake
  ${PROJECT_BINARY_DIR}/nibble-config-version.cmake
  DESTINATION ${nibble_package_dir})
install(FILES LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})
