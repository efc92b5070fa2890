# Target `headers`: each public header of plimsoll/, compiled by itself, is whole. A header is compiled again when it or what it includes
# has changed. By clang, which takes 0.8 s with torch's headers precompiled, where GCC instantiates their templates for 6 s.
find_program(PLIMSOLL_CLANG NAMES clang++-14 clang++)
if(NOT PLIMSOLL_CLANG)
  add_custom_target(headers
    COMMAND ${CMAKE_COMMAND} -E echo "headers: expected clang++ to check them with, found none; run tools/setup --check, then configure again"
    COMMAND false)
  return()
endif()

set(folder ${CMAKE_BINARY_DIR}/headers)
file(MAKE_DIRECTORY ${folder})
set(clang ${PLIMSOLL_CLANG} -std=c++20 -w -I${CMAKE_SOURCE_DIR}
    -isystem$<JOIN:$<TARGET_PROPERTY:plimsoll_torch,INTERFACE_INCLUDE_DIRECTORIES>,$<SEMICOLON>-isystem>
    -D$<JOIN:$<TARGET_PROPERTY:plimsoll_torch,INTERFACE_COMPILE_DEFINITIONS>,$<SEMICOLON>-D>
    -D$<JOIN:$<TARGET_PROPERTY:plimsoll_cpp-httplib,INTERFACE_COMPILE_DEFINITIONS>,$<SEMICOLON>-D>)
set(PLIMSOLL_HEADERS_TENSOR <ATen/core/TensorBody.h>)
set(precompiled_tensor -include-pch ${folder}/tensor.pch)
set(precompiled_torch -include-pch ${folder}/torch.pch)
foreach(set tensor torch)
  string(TOUPPER ${set} name)
  list(JOIN PLIMSOLL_HEADERS_${name} "\n#include " lines)
  file(CONFIGURE OUTPUT headers/${set}.hpp CONTENT "#include ${lines}\n" @ONLY)
  add_custom_command(OUTPUT ${folder}/${set}.pch
    COMMAND ${clang} -fpch-instantiate-templates -x c++-header ${folder}/${set}.hpp -o ${folder}/${set}.pch
    DEPENDS ${folder}/${set}.hpp ${PLIMSOLL_TORCH_PACKAGE}/version.py
    COMMENT "torch's headers for the check of headers" COMMAND_EXPAND_LISTS VERBATIM)
endforeach()

function(plimsoll_check_header header set)
  string(REGEX REPLACE "[/.]" "_" name ${header})
  set(checked ${folder}/${name})
  add_custom_command(OUTPUT ${checked}
    COMMAND ${clang} ${precompiled_${set}} -fsyntax-only -MD -MF ${checked}.d -MT ${checked} -x c++ ${CMAKE_SOURCE_DIR}/${header}
    COMMAND ${CMAKE_COMMAND} -E touch ${checked}
    DEPENDS ${CMAKE_SOURCE_DIR}/${header} $<$<NOT:$<STREQUAL:${set},none>>:${folder}/${set}.pch>
    DEPFILE ${checked}.d COMMENT "Header ${name} by itself" COMMAND_EXPAND_LISTS VERBATIM)
  set_property(GLOBAL APPEND PROPERTY PLIMSOLL_CHECKED_HEADERS ${checked})
endfunction()

# result: what `header`, a path from the root, reaches of torch: none, tensor (ATen/core and c10 alone) or torch.
function(plimsoll_torch_of header result)
  get_property(known GLOBAL PROPERTY PLIMSOLL_TORCH_OF_${header})
  if(NOT known)
    set(known none)
    set_property(GLOBAL PROPERTY PLIMSOLL_TORCH_OF_${header} none) # in a circle of includes
    file(STRINGS ${CMAKE_SOURCE_DIR}/${header} lines REGEX "^#include")
    foreach(line IN LISTS lines)
      string(REGEX REPLACE "^#include [<\"]([^>\"]+)[>\"].*" "\\1" name "${line}")
      if(name MATCHES "^plimsoll/" AND EXISTS ${CMAKE_SOURCE_DIR}/${name})
        plimsoll_torch_of(${name} reached)
      elseif(name MATCHES "^(ATen/core|c10)/")
        set(reached tensor)
      elseif(name MATCHES "^(torch|ATen)/")
        set(reached torch)
      else()
        set(reached none)
      endif()
      if(reached STREQUAL "torch" OR known STREQUAL "none")
        set(known ${reached})
      endif()
    endforeach()
    set_property(GLOBAL PROPERTY PLIMSOLL_TORCH_OF_${header} ${known})
  endif()
  set(${result} ${known} PARENT_SCOPE)
endfunction()

file(GLOB_RECURSE headers RELATIVE ${CMAKE_SOURCE_DIR} CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/plimsoll/*.h)
list(FILTER headers EXCLUDE REGEX "_testing\\.h$")
foreach(header IN LISTS headers)
  plimsoll_torch_of(${header} set)
  plimsoll_check_header(${header} ${set})
endforeach()

get_property(checked GLOBAL PROPERTY PLIMSOLL_CHECKED_HEADERS)
add_custom_target(headers DEPENDS ${checked})
