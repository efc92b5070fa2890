# Libraries for which Debian ships no CMake package. Sets: for each an imported target plimsoll_NAME, so that an installed Plimsoll finds
# it anew on its own machine.
foreach(name cpp-httplib csv pcre2-8 sentencepiece utf8proc)
  find_library(PLIMSOLL_LIBRARY_${name} ${name} REQUIRED)
  add_library(plimsoll_${name} UNKNOWN IMPORTED GLOBAL)
  set_target_properties(plimsoll_${name} PROPERTIES IMPORTED_LOCATION "${PLIMSOLL_LIBRARY_${name}}")
endforeach()
# The sizes of httplib's classes depend on it.
set_target_properties(plimsoll_cpp-httplib PROPERTIES INTERFACE_COMPILE_DEFINITIONS CPPHTTPLIB_OPENSSL_SUPPORT)
