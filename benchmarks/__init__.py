"""How fast the parts of this project are beside their alternatives, measured on this machine."""
