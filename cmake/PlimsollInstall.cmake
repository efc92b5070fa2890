# Installs every folder's target and headers, the program, and PlimsollConfig.cmake: find_package(Plimsoll), then link Plimsoll::plimsoll.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)
set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/Plimsoll)

get_property(libraries GLOBAL PROPERTY PLIMSOLL_LIBRARIES)
add_library(plimsoll_all INTERFACE)
add_library(Plimsoll::plimsoll ALIAS plimsoll_all)
set_target_properties(plimsoll_all PROPERTIES EXPORT_NAME plimsoll)
target_link_libraries(plimsoll_all INTERFACE ${libraries})
# ops registers its operators with torch in static initialisers, which a linker drops with objects that nothing calls.
target_link_options(plimsoll_all INTERFACE
                    "LINKER:--whole-archive,$<TARGET_FILE:Plimsoll::ops>,--no-whole-archive")

install(TARGETS ${libraries} plimsoll_all EXPORT PlimsollTargets ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
# In a wheel, torch and the OpenMP runtime that some of its wheels keep apart lie beside the package. Else a script finds them.
set(packages "$ORIGIN/../.." "${PLIMSOLL_TORCH_PACKAGE}/..")
list(TRANSFORM packages APPEND "/torch/lib" OUTPUT_VARIABLE torch_libraries)
list(TRANSFORM packages APPEND "/torch.libs" OUTPUT_VARIABLE openmp_libraries)
set_target_properties(plimsoll_cli PROPERTIES INSTALL_RPATH "${torch_libraries};${openmp_libraries}")
install(TARGETS plimsoll_cli RUNTIME DESTINATION ${CMAKE_INSTALL_LIBDIR}/plimsoll)
configure_file(${CMAKE_SOURCE_DIR}/cmake/plimsoll.in ${CMAKE_BINARY_DIR}/launcher/plimsoll @ONLY)
install(PROGRAMS ${CMAKE_BINARY_DIR}/launcher/plimsoll TYPE BIN)
install(EXPORT PlimsollTargets NAMESPACE Plimsoll:: DESTINATION ${package_dir})
install(DIRECTORY ${CMAKE_SOURCE_DIR}/plimsoll DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN "*.h" PATTERN bind EXCLUDE)

configure_package_config_file(${CMAKE_SOURCE_DIR}/cmake/PlimsollConfig.cmake.in ${CMAKE_BINARY_DIR}/PlimsollConfig.cmake
                              INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(${CMAKE_BINARY_DIR}/PlimsollConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_BINARY_DIR}/PlimsollConfig.cmake ${CMAKE_BINARY_DIR}/PlimsollConfigVersion.cmake
              ${CMAKE_SOURCE_DIR}/cmake/PlimsollLibraries.cmake ${CMAKE_SOURCE_DIR}/cmake/PlimsollTorch.cmake
        DESTINATION ${package_dir})

# make package: plimsoll-VERSION.deb and .tar.gz of all that is installed above. libtorch is not inside.
set(CPACK_GENERATOR DEB TGZ)
set(CPACK_PACKAGE_CONTACT "Plimsoll's authors")
set(CPACK_PACKAGE_FILE_NAME plimsoll-${PROJECT_VERSION}-torch${PLIMSOLL_TORCH_VERSION}-${CMAKE_SYSTEM_PROCESSOR})
set(CPACK_PACKAGE_DIRECTORY ${CMAKE_SOURCE_DIR}/dist)
set(CPACK_RESOURCE_FILE_LICENSE ${CMAKE_SOURCE_DIR}/LICENSE)
set(CPACK_STRIP_FILES ON)
set(CPACK_DEBIAN_PACKAGE_DEPENDS python3)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON) # the packages of what the program links, as this distribution names them
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS_PRIVATE_DIRS ${PLIMSOLL_TORCH_PACKAGE}/lib)
set(CMAKE_SKIP_INSTALL_ALL_DEPENDENCY ON) # tests are not installed
include(CPack)
