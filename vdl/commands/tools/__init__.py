"""Tools of `vdl mcp`, for programs that speak the Model Context Protocol."""
