# Installs every folder's target and headers, and PlimsollConfig.cmake.
