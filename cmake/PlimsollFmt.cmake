# Target plimsoll_fmt: the code behind the fmt headers in torch's wheel, which holds no library of them; Debian's is of another version.
# Header-only instead, fmt costs 6 to 8 s of compiling in every file that formats.
file(CONFIGURE OUTPUT fmt.cpp CONTENT [[
#include <fmt/format-inl.h>

FMT_BEGIN_NAMESPACE
namespace detail {
template auto thousands_sep_impl<char>(locale_ref) -> thousands_sep_result<char>;
template auto decimal_point_impl<char>(locale_ref) -> char;
}  // namespace detail
FMT_END_NAMESPACE
]])
add_library(plimsoll_fmt STATIC ${CMAKE_BINARY_DIR}/fmt.cpp)
add_library(Plimsoll::fmt ALIAS plimsoll_fmt)
set_target_properties(plimsoll_fmt PROPERTIES EXPORT_NAME fmt)
target_compile_options(plimsoll_fmt PRIVATE $<$<CONFIG:Release>:-O2>)
target_link_libraries(plimsoll_fmt PUBLIC plimsoll_torch)
set_property(GLOBAL APPEND PROPERTY PLIMSOLL_LIBRARIES plimsoll_fmt)
