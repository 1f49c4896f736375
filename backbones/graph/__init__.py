"""MXNet's graphs: their files, and the forms of a graph that train faster or in less memory."""
